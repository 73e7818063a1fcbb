-- Which slots of a semaphore are taken here; changes nothing. A hint for choosing
-- a slot: what decides is the slot's own record.
--
-- KEYS  marker, index of the semaphore
-- ARGV  1 marker
-- Reply {1, now, {slot, …}, until the first of them expires in ms or 0}; {-1, …}
local marker = redis.call('GET', KEYS[1])
if marker ~= ARGV[1] then return {-1, 0, marker} end
local now = clock()
local slots = redis.call('ZRANGEBYSCORE', KEYS[2], now + 1, '+inf')
local first = redis.call('ZRANGEBYSCORE', KEYS[2], now + 1, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return {1, now, slots, first[2] and first[2] - now or 0}
