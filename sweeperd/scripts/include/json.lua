-- JSON with its own settings. All scripts share the settings of the server's cjson (encode_max_depth and more), so a
-- client that changes them could make an encoding fail. Nothing is encoded or decoded after a script's first write. A
-- Redis imitation may lack cjson.new.
local json = cjson.new and cjson.new() or cjson
