# sd: one file, readable top to bottom.
#   make demo   install what is missing, build, probe the bundled model, draw the figure
#   make test   build and run every test
# Others: all check-asan fuzz bench lint install clean check-peers

.DEFAULT_GOAL := all
SHELL   := /bin/sh
VERSION := 0.1.0
PREFIX  ?= /usr/local
PROGRAM ?= sd
B       ?= build
CC      ?= gcc
READLINE ?= yes

ABI     := 1
OPT     ?= -O2
ifeq ($(NATIVE),1)
OPT += -march=native
endif
WARN    := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla \
           -Wformat=2 -Wno-format-nonliteral -Wundef -Wno-missing-field-initializers
PKGS    := lua5.4 libpcre2-8 jansson libutf8proc
CPPFLAGS += -D_POSIX_C_SOURCE=200809L -Icore -I$(B)/gen -DSD_VERSION='"$(VERSION)"' -DSD_PREFIX='"$(PREFIX)"'
CFLAGS  += -std=c11 $(OPT) -g -fno-math-errno -ffp-contract=off -fvisibility=hidden -MMD -MP $(WARN) $(SAN) $(WERROR)
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

$(B)/tests/%: tests/unit/%.c $(B)/libsd.a
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(PKGC) $< -o $@ $(B)/libsd.a -lcmocka $(LIBS)

$(B)/plugins/%.so: plugins/%.c core/include/sd_plugin.h
	@mkdir -p $(@D)
	$(CC) -std=c11 $(OPT) -g -Wall -Wextra -Icore/include -fPIC -fvisibility=hidden -shared -Wl,-z,defs $(SAN) $(WERROR) $< -o $@ -lm

clean:
	rm -rf build

-include $(LIBOBJ:.o=.d) $(APPOBJ:.o=.d)
.PHONY: all clean
