-- inversion.lua: what filtering and routing are worth to a model, by taking each away (claim C6).
--   sd scripts/inversion.lua [--calib FILE] [--text FILE] [MODEL...]
-- Without models: the two bundled ones. The scalar comes from the calibration text, never from the
-- text that is scored; without --calib the first half of the text calibrates and the second is scored.
local opt, models, i = { text = "data/introduction.txt" }, {}, 1
while arg[i] do
    local k = arg[i]:match "^%-%-(%a+)$"
    if k == "calib" or k == "text" then
        opt[k] = arg[i + 1] or error("value missing after --" .. k, 0)
        i = i + 1
    elseif k then
        error("unknown option --" .. k .. ": --calib or --text", 0)
    else
        models[#models + 1] = arg[i]
    end
    i = i + 1
end
if #models == 0 then models = { "data/interim-sd", "data/interim-gpt2" } end
local t, calib
if opt.calib then
    t, calib = text(opt.text), text(opt.calib)
else
    local f <close> = assert(io.open(opt.text, "rb"))
    local s = f:read "a"
    local middle = s:find("\n", #s // 2, true) or #s // 2
    calib, t = s:sub(1, middle), s:sub(middle + 1)
end
local cuts = {
    { "filtering to a scalar", { filter = "scalar", calib = calib } },
    { "no routing", { planes = 0 } },
    { "1 plane", { planes = 1 } },
    { "2 planes", { planes = 2 } },
    { "4 planes", { planes = 4 } },
}
local rows = {}
for _, path in ipairs(models) do
    local m = open(path)
    rows[#rows + 1] = { model = path, cut = "none", ppl = ppl(m, t):row(0).ppl }
    for _, c in ipairs(cuts) do
        local r = compare(m, truncate(m, c[2]), t):row(0)
        rows[#rows + 1] = { model = path, cut = c[1], ppl = r.ppl_b, change = r.change,
            delta = r.delta, delta_lo = r.delta_lo, delta_hi = r.delta_hi }
    end
end
print(tabulate(rows, { columns = { "model", "cut", "ppl", "change", "delta", "delta_lo", "delta_hi" } }))
