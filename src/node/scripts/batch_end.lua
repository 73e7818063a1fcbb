-- Runs a call that is not one of the usual two. The end of what batch.lua begins.
      end -- of answer()
    end

    local op, its_k, its_a, n, m = byte(text), k, a + 1, 1, 0
    if #text == 32 then
      op, text = 82, 'R' .. text .. '1'
    elseif op < 58 then
      op = byte(text, 17)
    end
    if op > 96 then
      op, n, m, its_a = op - 32, tonumber(ARGV[its_a]), tonumber(ARGV[its_a + 1]), its_a + 2
    end
    k, a, count = its_k + n, its_a + m, count + 1
    local answered, reply = pcall(answer, op, text, its_k, n, its_a, m)
    if not answered then
      -- What a command answered has a code in front, what Lua says has not.
      reply = tostring(type(reply) == 'table' and reply.err or reply)
      -- Redis 6 says where, too.
      reply = string.match(reply, '^@user_script: %d+: %-(.*)$') or reply
      reply = {err = find(reply, '^%u+ ') and reply or 'ERR ' .. reply}
    end
    -- Nothing must not be taken for 1.
    if reply ~= 1 then replies[count] = reply or {err = 'ERR no reply'} end
  end
end

if next(replies, 1) then
  for i = 2, count do replies[i] = replies[i] or 1 end
end
return replies
