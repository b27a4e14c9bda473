-- JSON with settings of its own. Those of the server's cjson (encode_max_depth and more) are shared by all scripts, and
-- any client can change them: then an encoding fails. Nothing is encoded or decoded after the first write of a script.
-- An imitation of Redis may have no cjson.new.
local json = cjson.new and cjson.new() or cjson
