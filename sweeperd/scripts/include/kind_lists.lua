-- A list of commands from a user's script, copied with raw access so that no metatable can act between check and write.

-- @include kind_checks

local kind_lists = {}
do
  local MAX_WORDS = 128

  -- The items of a list whose keys are exactly 1 to n.
  local function items(list, most)
    if type(list) ~= 'table' then
      refuse_plan('no list')
    end
    local length, copied = 0, {}
    for _ in next, list do
      length = length + 1
      if length > most then
        refuse_plan('a list of more than ' .. most)
      end
    end
    for i = 1, length do
      copied[i] = rawget(list, i)
      if copied[i] == nil then
        refuse_plan('a list with a hole')
      end
    end
    return copied
  end

  -- The commands, each a list of texts.
  function kind_lists.commands(list, most)
    local commands = items(list, most)
    for i = 1, #commands do
      local words = items(commands[i], MAX_WORDS)
      if #words == 0 then
        refuse_plan('a command without words')
      end
      for j = 1, #words do
        if type(words[j]) ~= 'string' then
          refuse_plan('a word that is no string: ' .. shown(words[j]))
        end
      end
      commands[i] = words
    end
    return commands
  end
end
