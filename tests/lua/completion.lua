-- completion.lua: what Tab offers by position, what help finds, what print shows.
local internal = debug.getregistry().sd_internal
local pass, fail = 0, 0
local function test(name, f)
    local ok, e = xpcall(f, debug.traceback)
    if ok then pass = pass + 1 else fail = fail + 1; print("FAILED " .. name .. ": " .. tostring(e)) end
end
-- Tab at the end of a line; the word to replace begins behind the last of readline's break characters.
local function tab(line)
    local start = #line - #line:match "[^ \t\n\"\\'`@$><=;|&{(%[%],%.:]*$" + 1
    return internal.complete(line, start)
end
local function offers(line, ...)
    local got = tab(line)
    assert(type(got) == "table", line .. " offers files")
    local set = {}
    for _, c in ipairs(got) do set[c] = true end
    for _, want in ipairs { ... } do
        assert(set[want], ("%s lacks %s: %s"):format(line, want, table.concat(got, " ")))
    end
    return got
end
local function none(line, what)
    local got = tab(line)
    for _, c in ipairs(type(got) == "table" and got or {}) do assert(c ~= what, line .. " offers " .. what) end
end

m = open "data/interim-sd"
w = heads(m)

test("columns where columns belong", function()
    for _, line in ipairs { 'w:sort("', 'w:select("layer", "', 'w:column "', 'w:doc("', 'w:group("', 'w:sort({"',
        'w:join(w, "', 'w:where "pr < 3 and ', "w:eval('", 'plot.rank(w, {column="', 'plot.xy(w, {x="',
        'plot.xy(w, {x="layer", y="' } do
        offers(line, "pr", "layer")
    end
    assert(#offers('w:sort("lay', "layer") == 1)
    offers('w:group("layer", {pr="', "median", "quantile 0.9")
    none('w:sort("', "data")
end)
test("fields of values", function()
    offers("w.", "pr", "columns")
    offers("w.pr_n", "pr_null")
    offers("m.config.", "n_layer", "vocab")
    offers("m.config.n_l", "n_layer")
    none("w:", "pr")
    offers("w:", "where", "group")
end)
test("names, presets, kinds, layers, topics", function()
    local name = m:names()[1]
    offers('m["', name)
    offers('edit(m, "', name)
    offers('new{preset="', "nano", "mini")
    offers('new{preset="nano", kind="', "sd", "softmax")
    offers('truncate(m, {layers="', "all", "0")
    offers('help "ten', "tensor")
    offers('help("table:wh', "where") -- the colon breaks words
    assert(tab('open "') == "files" and tab('text "da') == "files" and tab('w:csv("') == "files")
    w2 = w:first(1)
    w2:close()
    assert(type(tab "w2.") == "table", "a closed table completes without an error")
    w2 = nil
end)
test("help", function()
    local help_of = internal.topic
    assert(help_of "w.pr":find "^pr, a column of w\n  %S")
    assert(help_of "where":find "w:where" and help_of "table:filter":find "w:filter")
    local about = help_of '"sort rows"'
    assert(about:find "sort")
    about = internal.help "median"
    assert(about:find "t:median", 1, true)
    about = internal.help "tokeni"
    local first = about:match "\n  (%S+)"
    assert(first:find "tokeni", "names first: " .. about)
    assert(not internal.help():find "plot_", "one topic under one name")
    assert(help == sd.help and select("#", help(heads)) == 0, "printed, not returned")
end)
test("print", function()
    local out = {}
    local f = os.tmpname()
    local function printed(...)
        local h = assert(io.open(f, "w"))
        local old = io.stdout
        io.stdout = h
        print(...)
        io.stdout = old
        h:close()
        local s = io.open(f):read "a"
        return s
    end
    assert(printed({ 1, 2, a = "x" }, 3):find '{1, 2, a = "x"}\t3', 1, true)
    assert(printed(w:row(0)):find "layer = 0", 1, true)
    assert(printed(m.config):find "n_layer = 6", 1, true)
    assert(printed(w):find "layer", 1, true)
    os.remove(f)
end)
test("did you mean", function()
    local function message(f)
        local _, e = xpcall(f, debug.getregistry().sd_message or function(x) return x end)
        return e
    end
    local p = io.popen(("%s -q -e 'hads(3)' 2>&1"):format(os.getenv "SD_PROGRAM" or "build/sd"))
    local s = p:read "a"
    p:close()
    assert(s:find("did you mean heads?", 1, true), s)
    p = io.popen(("%s -q -e 'm = open \"data/interim-sd\" return nll(m, \"data/introduction.txt\")' 2>&1")
        :format(os.getenv "SD_PROGRAM" or "build/sd"))
    s = p:read "a"
    p:close()
    assert(s:find('text "data/introduction.txt" reads the file', 1, true), s)
end)

print(("%d passed, %d failed"):format(pass, fail))
os.exit(fail == 0 and 0 or 1)
