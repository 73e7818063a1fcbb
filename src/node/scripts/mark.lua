-- Writes the marker if it still is what the caller saw ('' = none), and with it the epoch that was chosen. A server of
-- the version before finds a deployment of no nodes from then on, and leaves it alone.
--
-- KEYS  marker, marker of the version before, register
-- ARGV  1 the marker seen   2 the new one   3 the process here   4 the epoch, or ''
-- Reply {1, now, new}; {0, now, marker?} it has changed meanwhile
local now = clock()
local marker = redis.call('GET', KEYS[1])
if not marker then
  marker = redis.call('GET', KEYS[2]) or ''
  if string.find(marker, ' upgraded 0 0', 1, true) then marker = '' end
end
if marker ~= ARGV[1] then return {0, now, marker} end
-- Who has accepted a later attempt to begin anew is out of the one before.
local accepted = string.match(redis.call('GET', KEYS[3]) or '', '([^|]*)$')
if string.find(ARGV[4], '^%S+ %S+ %S+ all ') and accepted ~= '' and accepted ~= ARGV[4] then
  return {0, now, marker}
end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('SET', KEYS[2], '1 ' .. ARGV[3] .. ' upgraded 0 0')
if ARGV[4] ~= '' then redis.call('SET', KEYS[3], ARGV[4] .. '|||') end
return {1, now, ARGV[2]}
