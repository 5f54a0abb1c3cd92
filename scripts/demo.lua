-- demo.lua: the main job on the bundled model, as `make demo` runs it:
-- rank of every layer on real text beside its nulls, as a table and a figure; then a cut.
local dir = arg and arg[1] or "."
local m = open(dir .. "/data/interim-sd")
local t = text(dir .. "/data/introduction.txt")
print(m)
local p = probe(m, t, { ctx = 256, seqs = 4 })
local s = p:summary()
print(s)
for _, ext in ipairs { "png", "svg" } do
    local file = dir .. "/build/demo-rank." .. ext
    plot.rank(p, { file = file })
    print("figure: " .. file)
end
print(plot.rank(p))
print "Cutting the routing of every layer to one plane (and to none), on the same text:"
print(compare(m, truncate(m, { planes = 1 }), t))
print(compare(m, truncate(m, { planes = 0 }), t))
print "Open the shell with:  build/sd"
