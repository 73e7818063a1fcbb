-- Which slots of a semaphore are taken here; changes nothing. A hint for choosing
-- a slot: what decides is the slot's own record.
--
-- KEYS  marker, index of the semaphore
-- ARGV  1 marker   2 how many permits there are   3 how many of them are wanted
--       4 how many slots are named where fewer are left than that
-- Reply {1, now, how many slots are taken, {slot, …}, until the first of them expires in ms or 0}; {-1, …}
local marker = redis.call('GET', KEYS[1])
if marker ~= ARGV[1] then return {-1, 0, marker} end
local now = clock()
local taken = redis.call('ZCOUNT', KEYS[2], now + 1, '+inf')
local first = redis.call('ZRANGEBYSCORE', KEYS[2], now + 1, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local named = taken + ARGV[3] > tonumber(ARGV[2]) and ARGV[4] or -1
local slots = redis.call('ZRANGEBYSCORE', KEYS[2], now + 1, '+inf', 'LIMIT', 0, named)
return {1, now, taken, slots, first[2] and first[2] - now or 0}
