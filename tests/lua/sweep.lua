-- sweep.lua: a series whose checkpoints are partly copies (CASES M11).
local dir = os.tmpname()
os.remove(dir)
local function run(cmd) assert(os.execute(cmd), cmd) end
run(("mkdir -p '%s/step2' '%s/step10'"):format(dir, dir))
local a = new { preset = "nano", n_layer = 1, seed = 1 }
local b = new { preset = "nano", n_layer = 1, seed = 2 }
save(a, dir .. "/step1")
run(("rm -r '%s/step2'"):format(dir))
save(b, dir .. "/step2")
save(a, dir .. "/step3")
run(("rmdir '%s/step10'"):format(dir))
save(b, dir .. "/step10")
local s = sweep(dir, { draws = 0 })
assert(#s == 4)
local order = {}
for i = 0, #s - 1 do order[#order + 1] = s:row(i).step end
assert(table.concat(order, " ") == "1 2 3 10", table.concat(order, " "))
assert(s:row(0).pr == s:row(2).pr and s:row(0).pr ~= s:row(1).pr)
local shown = tostring(s)
assert(shown:find "step1 and step3 hold the same weights" and shown:find "step2 and step10 hold the same weights")
assert(not shown:find "step1 and step2")
assert(s.meta.equal_pairs == 2)
local ok, err = pcall(sweep, "tests/lua")
assert(not ok and tostring(err):find "holds no checkpoints")
run(("rm -r '%s'"):format(dir))
print "1 passed, 0 failed"
