-- Reads what is stored under each key; changes nothing.
--
-- KEYS  marker, key × n
-- ARGV  1 marker
-- Reply {1, now, entry × n}; an entry is nil, or {fence} where only that is left, or
--       {fence, holder} as record.lua shows it; {-1, …}
local marker = redis.call('GET', KEYS[1])
if marker ~= ARGV[1] then return {-1, 0, marker} end
local now = clock()
local reply = {1, now}
for i = 2, #KEYS do
  local text = redis.call('GET', KEYS[i])
  local entry = false
  if text then
    local record = read_record(text)
    if not record then error('not a lease record') end
    local fence = tonumber(record:sub(17, 32))
    -- None is known where there is a first line only for what lies beside it.
    entry = fence > 0 and {fence, show_holders(record, now)}
  end
  reply[i + 1] = entry
end
return reply
