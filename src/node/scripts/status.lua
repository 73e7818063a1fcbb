-- The marker of this node and its clock, and what keeps it from granting: memory, its disk, its role, the rights
-- of our user … stop calls that do nothing, too, and those cost neither memory nor a change.
--
-- KEYS  marker
-- Reply {1, now, marker or nil, error?}
local now = clock()
local marker = redis.call('GET', KEYS[1])
local refused
if marker then
  local absent = KEYS[1] .. ':'
  for _, words in ipairs({
    {'SETRANGE', KEYS[1], '0', ''}, {'SET', KEYS[1], '', 'PXAT', '9999999999999', 'NX'},
    {'MGET', absent}, {'DEL', absent},
  }) do
    local reply = redis.pcall(unpack(words))
    refused = refused or type(reply) == 'table' and reply.err
  end
end
return {1, now, marker, refused or nil}
