-- One look at this node: its marker and its clock, and what keeps it from granting (memory, its disk, its role, the
-- rights of our user … stop calls that do nothing, too, and those cost neither memory nor a change). Also where the
-- right to grant leases of a class is recorded, and which addresses lead to which member.
--
-- KEYS  marker, marker of the version before, register, classes, addresses, looks
-- ARGV  1 a class to record, ms, or 0   2 for how long, ms   3 address=process of members, with a blank after each
-- Reply {1, now, {marker, chosen, accepted}, error or '', looks, largest class, addresses}
local now = clock()
local function text(key) return redis.call('GET', key) or '' end
local refused
local function try(...)
  local reply = redis.pcall(...)
  refused = refused or type(reply) == 'table' and reply.err
end
local marker = text(KEYS[1])
-- A later version's node is only looked at.
local is_newer = (tonumber(string.match(marker, '^%d+')) or 0) > 2
if marker ~= '' and not is_newer then
  try('SETRANGE', KEYS[1], '0', '')
  try('SET', KEYS[1], '', 'PXAT', '9999999999999', 'NX')
  try('MGET', KEYS[1] .. ':')
  try('DEL', KEYS[1] .. ':')
  try('ZREM', KEYS[1] .. ':', '')
elseif marker == '' then
  marker = text(KEYS[2])
  if string.find(marker, ' upgraded 0 0', 1, true) then marker = '' end
end
if ARGV[1] ~= '0' and not is_newer then
  try('ZADD', KEYS[4], string.format('%.0f', now + ARGV[2]), ARGV[1])
  redis.pcall('ZREMRANGEBYSCORE', KEYS[4], '-inf', string.format('%.0f', now))
end
local class = 0
for _, ms in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], string.format('%.0f', now), '+inf')) do
  class = math.max(class, tonumber(ms))
end
-- Nothing is written to what is no member of the caller's deployment.
local looks, known = tonumber(text(KEYS[6])) or 0, text(KEYS[5])
if ARGV[3] ~= '' then
  -- One that could not be stored must not be told: the next would seem to go back.
  if not redis.pcall('SET', KEYS[6], string.format('%.0f', looks + 1)).err then looks = looks + 1 end
  local before = known
  for pair in string.gmatch(ARGV[3], '%S+') do
    if not string.find(known, pair .. ' ', 1, true) then known = pair .. ' ' .. string.sub(known, 1, 4000) end
  end
  if known ~= before then redis.pcall('SET', KEYS[5], known) end
end
local chosen, accepted = string.match(text(KEYS[3]), '^([^|]*)|[^|]*|[^|]*|([^|]*)$')
return {1, now, {marker, chosen or '', accepted or ''}, refused or '', looks, class, known}
