-- JSON with separate settings. The settings of the server's cjson (encode_max_depth and more) are shared by all
-- scripts, and if a client changes them, an encoding fails. Nothing is encoded or decoded after the first write of a
-- script. An imitation of Redis may have no cjson.new.
local json = cjson.new and cjson.new() or cjson
