-- train.lua: calibration on every attention kind, training folders and token files.
local pass, fail = 0, 0
local function test(name, f)
    local ok, e = xpcall(f, debug.traceback)
    if ok then pass = pass + 1 else fail = fail + 1; print("FAILED " .. name .. ": " .. tostring(e)) end
end
local function raises(pattern, f, ...)
    local ok, e = pcall(f, ...)
    assert(not ok, "no error")
    assert(tostring(e):find(pattern), "wrong error: " .. tostring(e))
end
local ids = {}
for i = 1, 300 do ids[i] = i * i * 7 % 200 end

test("calibration beside layers without queries and keys", function()
    for _, kind in ipairs { "uniform", "bilinear", "potential", "elu1", "softmax" } do
        local m = new { preset = "nano", kind = kind .. ",sd", n_layer = 2 }
        local cut = { layers = 1, planes = 2, basis = "calibrated", calib = ids, ctx = 32 }
        assert(truncate(m, cut).n_params > 0, kind)
        assert(truncate(m, { layers = 1, filter = "scalar", calib = ids, ctx = 32 }).n_params > 0)
    end
end)

print(("%d passed, %d failed"):format(pass, fail))
