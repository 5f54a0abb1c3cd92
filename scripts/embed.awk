# embed.awk: Lua sources as one C file (build/gen/lua_embed.c).
#   awk -f scripts/embed.awk lua/a.lua lua/b.lua
# Escapes by hand: awks disagree about backslashes in gsub.
function escape(s,    out, i, c) {
    out = ""
    for (i = 1; i <= length(s); i++) {
        c = substr(s, i, 1)
        if (c == "\\" || c == "\"" || c == "?") # ?: no trigraphs
            out = out "\\"
        out = out (c == "\t" ? "\\t" : c)
    }
    return out
}
BEGIN {
    print "/* Generated from lua/; do not edit. */\n#include \"lua/embed.h\"\n\nconst sd_embed sd_embedded[] = {"
    for (i = 1; i < ARGC; i++) {
        name = ARGV[i]
        sub(/.*\//, "", name)
        printf "    {\"%s\",\n", name
        while ((getline line < ARGV[i]) > 0)
            printf "     \"%s\\n\"\n", escape(line)
        print "     \"\"},"
        close(ARGV[i])
    }
    print "    {0, 0}};"
    exit
}
