/*
 * The description of a machine: what the fake NVML library plays.
 *
 * A text file, one fact a line, words between single spaces, `#` for comments. GPU is the number of
 * a `gpu` line, which must come before what refers to it; PCI addresses are 0000:07:00.0. A GPU
 * answers NOT_SUPPORTED to what no line tells of it.
 *
 *   driver VERSION NVML-VERSION CUDA        570.124.06 12.570.124.06 12080
 *   gpu GPU UUID ADDRESS NAME …             NVML numbers what is there in this order; GPU stays the
 *                                           minor number and the name in every other line
 *   memory GPU TOTAL RESERVED USED          bytes; used without the reserved ones
 *   numa GPU NODE                           the host's node nearest to it (memory affinity)
 *   capability GPU MAJOR MINOR              of CUDA
 *   own-numa GPU NODE                       its own memory is this NUMA node (Grace)
 *   class GPU GPU WORD                      BOARD PIX PXB PHB NODE SYS; absent: UNKNOWN (999)
 *   nvlink GPU LINK STATE VERSION REMOTE    STATE up, down; REMOTE gpu ADDRESS, switch ADDRESS,
 *                                           unknown; VERSION as nvmlNvlinkVersion_t
 *   nvlink-speed GPU MBPS                   of one link, NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON
 *   fabric GPU STATE UUID CLIQUE            STATE as nvmlGpuFabricState_t
 *   mig-mode GPU CURRENT PENDING MAXIMUM    0 or 1, 0 or 1, most instances
 *   mig GPU SLOT GI CI UUID BYTES SLICES COMPUTE-SLICES MULTIPROCESSORS PROFILE
 *   process GPU compute|graphics PID BYTES GI CI          GI and CI may be 4294967295 (none)
 *   utilisation GPU PERCENT MEMORY-PERCENT
 *   energy GPU MILLIJOULES MILLIWATTS SINCE               since: CLOCK_MONOTONIC in ns
 *   ecc GPU CORRECTED UNCORRECTED
 *   pages GPU PENDING ADDRESS:TIME …        retired pages, all for double bit errors
 *   rows GPU CORRECTED UNCORRECTED PENDING FAILURE
 *   recovery GPU CODE                       NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
 *
 * What goes wrong:
 *
 *   lost GPU                                answers GPU_IS_LOST to everything
 *   gone GPU                                the same, and is not there at the next nvmlInit
 *   xid SERIAL GPU NUMBER                   an event; serials ascend and are never used again
 *   hang FUNCTION [GPU]                     the call waits for as long as this line stands
 *   fail FUNCTION CODE [GPU]                the call answers CODE
 *
 * FUNCTION may leave out the version (nvmlDeviceGetMemoryInfo stands for _v2 as well).
 */
#define _POSIX_C_SOURCE 200809L

#include "fake.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A line being read. The first thing that is wrong with it stays in `wrong`. */
struct Line {
    char *rest;
    const char *wrong;
    struct World *world;
};

static void blame(struct Line *line, const char *what) {
    if (!line->wrong) line->wrong = what;
}

static char *word(struct Line *line) {
    static char nothing[1];
    char *start = line->rest;
    if (!start || !*start) {
        blame(line, "ends too early");
        return nothing;
    }
    char *space = strchr(start, ' ');
    if (space) *space = '\0';
    line->rest = space ? space + 1 : NULL;
    return start;
}

static bool more(const struct Line *line) {
    return line->rest && *line->rest;
}

static uint64_t number_in(struct Line *line, const char *text) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 0);
    if (*text < '0' || *text > '9' || *end || errno) blame(line, "a number is not one");
    return value;
}

static uint64_t number(struct Line *line) {
    return number_in(line, word(line));
}

static unsigned small(struct Line *line) {
    uint64_t value = number(line);
    if (value > UINT_MAX) blame(line, "a number is too large");
    return (unsigned)value;
}

static void text(struct Line *line, char *to, const char *from) {
    if (strlen(from) >= TEXT) blame(line, "a word is too long");
    snprintf(to, TEXT, "%.*s", TEXT - 1, from);
}

bool address_of(const char *text, struct Address *at) {
    int end = 0;
    int found = sscanf(text, "%8x:%2x:%2x.%1x%n", &at->domain, &at->bus, &at->device,
                       &at->function, &end);
    if (found == 4 && !text[end]) return true;
    at->domain = 0;
    end = 0;
    found = sscanf(text, "%2x:%2x.%1x%n", &at->bus, &at->device, &at->function, &end);
    return found == 3 && !text[end];
}

static struct Address address(struct Line *line) {
    struct Address at = {0};
    if (!address_of(word(line), &at)) blame(line, "a PCI address is not one");
    return at;
}

/* The GPU a line is about; a scrap one where there is none, so that reading can go on. */
static struct Gpu *gpu(struct Line *line) {
    static struct Gpu scrap; /* only ever written to, under the caller's lock */
    struct World *world = line->world;
    unsigned wanted = small(line);
    for (unsigned i = 0; i < world->gpus; i++)
        if (world->gpu[i].number == (int)wanted) return &world->gpu[i];
    blame(line, "there is no such GPU");
    return &scrap;
}

/* Room for one more element at the end of an array that grows by doubling. */
static void *grown(void *array, size_t count, size_t size) {
    if (count & (count - 1)) return array;
    void *larger = realloc(array, (count ? 2 * count : 1) * size);
    if (!larger) abort();
    return larger;
}

static void read_driver(struct Line *line) {
    struct World *world = line->world;
    text(line, world->driver, word(line));
    text(line, world->nvml, word(line));
    world->cuda = (int)small(line);
}

static void read_gpu(struct Line *line) {
    struct World *world = line->world;
    if (world->gpus == MAX_GPUS) {
        blame(line, "one GPU too many");
        return;
    }
    struct Gpu *new = &world->gpu[world->gpus];
    new->number = (int)small(line);
    text(line, new->uuid, word(line));
    new->address = address(line);
    text(line, new->name, more(line) ? line->rest : "");
    line->rest = NULL;
    for (unsigned i = 0; i < world->gpus; i++)
        if (world->gpu[i].number == new->number || !strcmp(world->gpu[i].uuid, new->uuid))
            blame(line, "this GPU was there before");
    world->gpus++;
}

static void read_memory(struct Line *line) {
    struct Gpu *on = gpu(line);
    on->facts |= MEMORY;
    on->memory = number(line);
    on->reserved = number(line);
    on->used = number(line);
    if (on->reserved + on->used > on->memory) blame(line, "more memory is used than there is");
}

static void read_numa(struct Line *line) {
    struct Gpu *on = gpu(line);
    on->facts |= NUMA;
    on->numa = (int)small(line);
}

static void read_capability(struct Line *line) {
    struct Gpu *on = gpu(line);
    on->facts |= CAPABILITY;
    on->major = (int)small(line);
    on->minor = (int)small(line);
}

static void read_own_numa(struct Line *line) {
    struct Gpu *on = gpu(line);
    on->facts |= OWN_NUMA;
    on->own_numa = (int)small(line);
}

static void read_class(struct Line *line) {
    static const struct {
        const char *word;
        signed char level;
    } classes[] = {{"BOARD", 0}, {"PIX", 10},  {"PXB", 20},
                   {"PHB", 30},  {"NODE", 40}, {"SYS", 50}};
    struct Gpu *a = gpu(line), *b = gpu(line);
    const char *wanted = word(line);
    if (line->wrong) return;
    ptrdiff_t i = a - line->world->gpu, j = b - line->world->gpu;
    for (size_t k = 0; k < sizeof classes / sizeof *classes; k++)
        if (!strcmp(classes[k].word, wanted)) {
            line->world->class[i][j] = line->world->class[j][i] = classes[k].level;
            return;
        }
    blame(line, "there is no such class");
}

static void read_nvlink(struct Line *line) {
    struct Gpu *on = gpu(line);
    unsigned number = small(line);
    if (number >= MAX_LINKS) {
        blame(line, "a link number is too large");
        return;
    }
    struct Link *link = &on->link[number];
    link->present = true;
    if (on->links <= number) on->links = number + 1;
    const char *state = word(line);
    if (strcmp(state, "up") && strcmp(state, "down")) blame(line, "a link is up or down");
    link->active = !strcmp(state, "up");
    link->version = small(line);
    const char *remote = word(line);
    link->remote = REMOTE_UNKNOWN;
    if (!strcmp(remote, "gpu") || !strcmp(remote, "switch")) {
        link->remote = *remote == 'g' ? REMOTE_GPU : REMOTE_SWITCH;
        link->address = address(line);
    } else if (strcmp(remote, "unknown"))
        blame(line, "a link's remote is gpu, switch or unknown");
}

static void read_nvlink_speed(struct Line *line) {
    struct Gpu *on = gpu(line);
    on->facts |= SPEED;
    on->speed = small(line);
}

static void read_fabric(struct Line *line) {
    struct Gpu *on = gpu(line);
    on->facts |= FABRIC;
    on->fabric_state = small(line);
    const char *uuid = word(line);
    unsigned nibbles = 0;
    for (; *uuid; uuid++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = strchr(digits, *uuid);
        if (*uuid == '-') continue;
        if (!digit || nibbles == 32) {
            blame(line, "a cluster UUID is not one");
            return;
        }
        unsigned char *byte = &on->cluster[nibbles++ / 2];
        *byte = (unsigned char)(*byte << 4 | (digit - digits));
    }
    if (nibbles != 32) blame(line, "a cluster UUID is not one");
    on->clique = small(line);
}

static void read_mig_mode(struct Line *line) {
    struct Gpu *on = gpu(line);
    on->facts |= MIG;
    on->mig_current = small(line);
    on->mig_pending = small(line);
    on->mig_maximum = small(line);
}

static void read_mig(struct Line *line) {
    struct Gpu *on = gpu(line);
    unsigned slot = small(line);
    if (slot >= MAX_INSTANCES) {
        blame(line, "a MIG slot is too large");
        return;
    }
    struct Instance *new = &on->instances[slot];
    new->present = true;
    new->slot = slot;
    new->gpu_instance = small(line);
    new->compute_instance = small(line);
    text(line, new->uuid, word(line));
    new->memory = number(line);
    new->slices = small(line);
    new->compute_slices = small(line);
    new->multiprocessors = small(line);
    text(line, new->profile, word(line));
}

static void read_process(struct Line *line) {
    struct World *world = line->world;
    struct Process new = {.gpu = gpu(line)->number};
    const char *kind = word(line);
    if (strcmp(kind, "compute") && strcmp(kind, "graphics")) blame(line, "compute or graphics");
    new.graphics = !strcmp(kind, "graphics");
    new.pid = small(line);
    new.bytes = number(line);
    new.gpu_instance = small(line);
    new.compute_instance = small(line);
    world->process = grown(world->process, world->processes, sizeof new);
    world->process[world->processes++] = new;
}

static void read_utilisation(struct Line *line) {
    struct Gpu *on = gpu(line);
    on->facts |= UTILISATION;
    on->busy = small(line);
    on->memory_busy = small(line);
}

static void read_energy(struct Line *line) {
    struct Gpu *on = gpu(line);
    on->facts |= ENERGY;
    on->energy = number(line);
    on->milliwatts = number(line);
    on->since = number(line);
}

static void read_ecc(struct Line *line) {
    struct Gpu *on = gpu(line);
    on->facts |= ECC;
    on->corrected = number(line);
    on->uncorrected = number(line);
}

static void read_pages(struct Line *line) {
    struct Gpu *on = gpu(line);
    on->facts |= PAGES;
    on->retirement_pending = small(line);
    while (more(line)) {
        char *page = word(line), *colon = strchr(page, ':');
        if (!colon || on->retired == MAX_PAGES) {
            blame(line, colon ? "one page too many" : "a page is ADDRESS:TIME");
            return;
        }
        *colon = '\0';
        on->page_address[on->retired] = number_in(line, page);
        on->page_time[on->retired++] = number_in(line, colon + 1);
    }
}

static void read_rows(struct Line *line) {
    struct Gpu *on = gpu(line);
    on->facts |= ROWS;
    on->rows_corrected = small(line);
    on->rows_uncorrected = small(line);
    on->rows_pending = small(line);
    on->rows_failure = small(line);
}

static void read_recovery(struct Line *line) {
    struct Gpu *on = gpu(line);
    on->facts |= RECOVERY;
    on->recovery = small(line);
}

static void read_lost(struct Line *line) {
    gpu(line)->lost = true;
}

static void read_gone(struct Line *line) {
    struct Gpu *on = gpu(line);
    on->lost = on->gone = true;
}

static void read_xid(struct Line *line) {
    struct World *world = line->world;
    struct Xid new = {.serial = number(line)};
    new.gpu = gpu(line)->number;
    new.number = small(line);
    if (world->xids && world->xid[world->xids - 1].serial >= new.serial)
        blame(line, "serials must ascend");
    world->xid = grown(world->xid, world->xids, sizeof new);
    world->xid[world->xids++] = new;
}

static void read_fault(struct Line *line, bool hangs) {
    struct World *world = line->world;
    struct Fault new = {.hangs = hangs, .gpu = ANYWHERE};
    text(line, new.function, word(line));
    if (!hangs) new.code = small(line);
    if (more(line)) new.gpu = gpu(line)->number;
    world->fault = grown(world->fault, world->faults, sizeof new);
    world->fault[world->faults++] = new;
}

static void read_hang(struct Line *line) {
    read_fault(line, true);
}

static void read_fail(struct Line *line) {
    read_fault(line, false);
}

static void read_line(struct Line *line) {
    static const struct {
        const char *keyword;
        void (*read)(struct Line *);
    } kinds[] = {
        {"driver", read_driver},
        {"gpu", read_gpu},
        {"memory", read_memory},
        {"numa", read_numa},
        {"capability", read_capability},
        {"own-numa", read_own_numa},
        {"class", read_class},
        {"nvlink", read_nvlink},
        {"nvlink-speed", read_nvlink_speed},
        {"fabric", read_fabric},
        {"mig-mode", read_mig_mode},
        {"mig", read_mig},
        {"process", read_process},
        {"utilisation", read_utilisation},
        {"energy", read_energy},
        {"ecc", read_ecc},
        {"pages", read_pages},
        {"rows", read_rows},
        {"recovery", read_recovery},
        {"lost", read_lost},
        {"gone", read_gone},
        {"xid", read_xid},
        {"hang", read_hang},
        {"fail", read_fail},
    };
    const char *keyword = word(line);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].keyword, keyword)) {
            kinds[i].read(line);
            if (more(line)) blame(line, "says too much");
            return;
        }
    blame(line, "begins with an unknown word");
}

struct World *world_of(char *text, char *reason, size_t room) {
    struct World *world = calloc(1, sizeof *world);
    if (!world) abort();
    memset(world->class, UNKNOWN_CLASS, sizeof world->class);
    unsigned at = 0;
    for (char *start = text; start && *start;) {
        char *end = strchr(start, '\n');
        if (end) *end = '\0';
        at++;
        if (*start && *start != '#') {
            struct Line line = {.rest = start, .world = world};
            read_line(&line);
            if (line.wrong) {
                snprintf(reason, room, "line %u: %s", at, line.wrong);
                world_free(world);
                return NULL;
            }
        }
        start = end ? end + 1 : NULL;
    }
    if (!*world->driver) {
        snprintf(reason, room, "there is no driver line");
        world_free(world);
        return NULL;
    }
    return world;
}

void world_free(struct World *world) {
    if (!world) return;
    free(world->process);
    free(world->xid);
    free(world->fault);
    free(world);
}
