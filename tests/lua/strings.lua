-- strings.lua: the interruptible string functions answer as Lua's own. The same cases, fixed and drawn
-- at random, run here and in stock lua5.4; every answer and every error has to be the same.
local function show(ok, ...)
    local t = { tostring(ok) }
    for i = 1, select("#", ...) do
        local v = select(i, ...)
        t[#t + 1] = math.type(v) and ("%s:%s"):format(math.type(v), v) or ("%q"):format(tostring(v))
    end
    return (table.concat(t, " "):gsub("\n", "n"))
end
local function all(s, p, init)
    local t = {}
    for a, b in string.gmatch(s, p, init) do
        t[#t + 1] = tostring(a) .. "," .. tostring(b)
        if #t > 50 then break end
    end
    return table.concat(t, ";")
end
local function cases(out)
    local function try(name, f, ...) out(name .. " " .. show(pcall(f, ...))) end
    local subjects = { "", "a", "hello world", "key = value", "a,b,,c", "f(a(b)c)d", "THE (quick) fox", "\0a\0b", "x^y$z",
        "aaaaaab", "äöü", "  trim  ", "%d", "[]]", "0x1F 12 -3", 12, -1.5 }
    local patterns = { "", "a", ".", "a*", "a-b", "(a*)b", "^h", "d$", "$", "^", "l+", "(l)(l)", "()", "()l()", "%w+",
        "(%w+) = (%w+)", "%b()", "%f[%a]%a+", "%f[%z]", "[^,]*", "[]]", "[^]]", "[a-c]", "[a-]", "[%a_][%w_]*", "%s*$",
        "^%s*(.-)%s*$", "(.)%1", "%1", "(%1)", "[a", "[", "%", "(", ")", "(()", "%b", "%bx", "%f", "%fa", "[%", "a?b?c?",
        "\0", "[\0a]", "%z", "%Z", "x%^y", ".-$", "(h)(e)(l)(l)(o)", "%d+", "[%d%a]+", "^a", "[%a-z]", "[a%-z]", "%x+", "%p",
        "%u+", "%c", "%g+", "((a)(b?))", "(a?)(%1)", "a-", ("(a)"):rep(33), ("()"):rep(32), ("a?"):rep(250), ("(a-)"):rep(9), 1, "é*" }
    for _, s in ipairs(subjects) do
        for _, p in ipairs(patterns) do
            for _, init in ipairs { false, 1, 3, -2, 0, 99, -99 } do
                local at = init or nil
                try("find", string.find, s, p, at)
                try("match", string.match, s, p, at)
                try("gmatch", all, s, p, at)
            end
            try("plain", string.find, s, p, 1, true)
            for _, r in ipairs { "", "<%0>", "%1", "%2", "%%", "%", "%x", "[%1%1]", 7, "%9", { a = "A", l = false, [" "] = 3 }, {},
                function(a, b) return b or a end, function() return nil end, function() return {} end, true } do
                try("gsub", string.gsub, s, p, r)
            end
            try("gsub2", string.gsub, s, p, "x", 1)
            try("gsub0", string.gsub, s, p, "x", -1)
        end
    end
    for _, a in ipairs { { "ab", 3 }, { "ab", 3, "," }, { "", 5 }, { "", 3, "xy" }, { "x", 0 }, { "x", -1, "," }, { "x", 1, "," },
        { "abc", 1000, "--" }, { "x", math.maxinteger }, { "xy", math.maxinteger }, { "x", 1e15, "y" }, { 12, "3" }, { "x", 1.5 }, { {}, 2 }, {} } do
        try("rep", function(...)
            local s = string.rep(...)
            return #s, s:sub(1, 20), s:sub(-20)
        end, table.unpack(a))
    end
    for _, f in ipairs { "find", "match", "gmatch", "gsub", "rep" } do
        try("missing", string[f])
        try("missing", string[f], "a")
        try("wrong", string[f], {}, "a", "b")
        try("wrong", string[f], "a", {}, "b")
        try("wrong", string[f], "a", "a", "b", "c")
    end
    local state = 12345 -- the same draws in both programs
    local function draw(n)
        state = (state * 1103515245 + 12345) & 0x7fffffff
        return (state >> 8) % n + 1
    end
    local parts = { "a", "b", ".", "%a", "%A", "[ab]", "[^a]", "(", ")", "()", "*", "+", "-", "?", "%1", "%b()", "%f[a]", "^", "$", "[a-b]", "%%", "%" }
    local chars = { "a", "b", "(", ")", "1", "%" }
    for _ = 1, 20000 do
        local p, s = {}, {}
        for i = 1, draw(7) do p[i] = parts[draw(#parts)] end
        for i = 1, draw(9) do s[i] = chars[draw(#chars)] end
        p, s = table.concat(p), table.concat(s)
        try(s .. " " .. p, string.find, s, p, draw(3))
        try(s .. " " .. p, string.gsub, s, p, "<%1>")
        try(s .. " " .. p, all, s, p)
    end
end
local lines = {}
cases(function(s) lines[#lines + 1] = (s:gsub("[%c]", "?")) end)
if arg and arg[1] == "--print" then
    print(table.concat(lines, "\n"))
    return
end
local pipe = assert(io.popen("lua5.4 tests/lua/strings.lua --print"))
local theirs, i, bad = {}, 0, 0
for l in pipe:lines() do
    i = i + 1
    if l ~= lines[i] then
        bad = bad + 1
        if bad <= 10 then print(("line %d:\n  lua5.4 %s\n  here   %s"):format(i, l, tostring(lines[i]))) end
    end
end
pipe:close()
if i ~= #lines or i < 60000 then bad = bad + 1 end
print(("%d passed, %d failed"):format(bad == 0 and 1 or 0, bad == 0 and 0 or 1))
