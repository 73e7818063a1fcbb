-- One step of a walk over the keys of a kind: who holds them.
--
-- KEYS  marker
-- ARGV  1 marker   2 cursor ('0' to begin)   3 pattern   4 how many keys to look at, about
-- Reply {1, now, next cursor, {key, holder as record.lua shows it …}, …}; {-1, …}
local marker = redis.call('GET', KEYS[1])
if marker ~= ARGV[1] then return {-1, 0, marker} end
local now = clock()
local step = redis.call('SCAN', ARGV[2], 'MATCH', ARGV[3], 'COUNT', ARGV[4])
local reply = {1, now, step[1]}
-- MGET says false where a key is no string: what is no record does not end the walk.
local texts = #step[2] > 0 and redis.call('MGET', unpack(step[2])) or {}
for i, key in ipairs(step[2]) do
  local text = texts[i]
  -- Most records have no lease any more: their first line is all there is.
  if text and #text ~= 80 then
    local read, entry = pcall(show_holders, read_record(text) or '', now)
    if read and entry then
      table.insert(entry, 1, key)
      reply[#reply + 1] = entry
    end
  end
end
return reply
