/* embed.h: the Lua sources of lua/, embedded at build time (build/gen/lua_embed.c). */
#ifndef SD_LUA_EMBED_H
#define SD_LUA_EMBED_H

typedef struct sd_embed {
    const char *name; /* "help.lua" */
    const char *text;
} sd_embed;

extern const sd_embed sd_embedded[]; /* in file name order; ends with a NULL name */

#endif
