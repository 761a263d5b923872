/*
 * How the description is read again, what handles stand for, and how every call begins and ends;
 * nvml.c says how the parts work together.
 */
#define _POSIX_C_SOURCE 200809L

#include "fake.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
unsigned users;
struct World *played;
static bool unreadable; /* the file as it is now is none */
static char path[PATH_MAX];
static struct stat seen;
Device handles;

/* --- Reading the description ------------------------------------------------------------------ */

static bool unchanged(const struct stat *now) {
    return seen.st_ino == now->st_ino && seen.st_dev == now->st_dev &&
           seen.st_size == now->st_size && seen.st_mtim.tv_sec == now->st_mtim.tv_sec &&
           seen.st_mtim.tv_nsec == now->st_mtim.tv_nsec;
}

static char *contents(int file, size_t size) {
    char *text = malloc(size + 1);
    if (!text) abort();
    size_t have = 0;
    while (have < size) {
        ssize_t got = read(file, text + have, size - have);
        if (got <= 0) break;
        have += (size_t)got;
    }
    text[have] = '\0';
    return text;
}

/* Brings `played` up to date; a file that cannot be read leaves it and sets `unreadable`. */
static void refresh(void) {
    struct stat now;
    if (!users) { /* nobody depends on the file of an earlier nvmlInit */
        const char *wanted = getenv("FAKE_NVML");
        if (strcmp(path, wanted ? wanted : "")) {
            snprintf(path, sizeof path, "%s", wanted ? wanted : "");
            memset(&seen, 0, sizeof seen);
            world_free(played);
            played = NULL;
            unreadable = true;
        }
    }
    if (!*path || (!stat(path, &now) && unchanged(&now))) return;
    char reason[256] = "it cannot be opened";
    struct World *fresh = NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        if (!fstat(file, &now)) {
            char *text = contents(file, (size_t)now.st_size);
            fresh = world_of(text, reason, sizeof reason);
            free(text);
            seen = now;
        }
        close(file);
    } else if (unreadable && users)
        return; /* said before */
    unreadable = !fresh;
    if (!fresh) {
        fprintf(stderr, "fake nvml: %s: %s\n", path, reason);
        return;
    }
    world_free(played);
    played = fresh;
}

/* --- Handles ---------------------------------------------------------------------------------- */

struct Gpu *gpu_of(const struct Handle *handle) {
    for (unsigned i = 0; played && i < played->gpus; i++)
        if (!strcmp(played->gpu[i].uuid, handle->uuid)) return &played->gpu[i];
    return NULL;
}

static Device whole(Device handle) {
    return handle->parent ? handle->parent : handle;
}

Device handle_of(const char *uuid, Device parent) {
    for (Device each = handles; each; each = each->next)
        if (each->parent == parent && !strcmp(each->uuid, uuid)) return each;
    Device new = calloc(1, sizeof *new);
    if (!new) abort();
    snprintf(new->uuid, sizeof new->uuid, "%s", uuid);
    new->parent = parent;
    new->next = handles;
    return handles = new;
}

static bool known(const struct Handle *device) {
    for (Device each = handles; each; each = each->next)
        if (each == device) return true;
    return false;
}

/* --- Entering and leaving --------------------------------------------------------------------- */

/* The part of a symbol that faults name: without _v3, and nvmlInit for both of its forms. */
static size_t stem(const char *function) {
    size_t length = strlen(function);
    if (length > 3 && function[length - 3] == '_' && function[length - 2] == 'v') length -= 3;
    if (!strncmp(function, "nvmlInit", 8)) length = 8;
    return length;
}

/* The latest fault that is described for this call. */
static const struct Fault *fault(const char *function, Device device) {
    const size_t length = stem(function);
    const struct Gpu *on = device && known(device) ? gpu_of(whole(device)) : NULL;
    for (size_t i = played ? played->faults : 0; i-- > 0;) {
        const struct Fault *each = &played->fault[i];
        bool stem_named = strlen(each->function) == length &&
                          !memcmp(each->function, function, length);
        bool here = each->gpu == ANYWHERE || (on && on->number == each->gpu);
        if (here && (stem_named || !strcmp(each->function, function))) return each;
    }
    return NULL;
}

void doze(void) {
    const struct timespec moment = {.tv_nsec = 50 * 1000 * 1000};
    pthread_mutex_unlock(&lock);
    nanosleep(&moment, NULL);
    pthread_mutex_lock(&lock);
    refresh();
}

Return leave(Return code) {
    pthread_mutex_unlock(&lock);
    return code;
}

/* Locks, reads, waits while the call is described as hanging, answers a described failure. */
static Return begin(const char *function, Device device) {
    const struct Fault *found;
    pthread_mutex_lock(&lock);
    refresh();
    while ((found = fault(function, device)) && found->hangs) doze();
    return found ? (Return)found->code : SUCCESS;
}

Return enter(const char *function, const void *answer) {
    Return code = begin(function, NULL);
    if (!users) return UNINITIALIZED;
    return code ? code : answer ? SUCCESS : INVALID_ARGUMENT;
}

Return find(Device device, struct Target *on) {
    if (!known(device) || !whole(device)->present) return INVALID_ARGUMENT;
    on->gpu = gpu_of(whole(device));
    if (!on->gpu || on->gpu->lost) return GPU_IS_LOST;
    if (!device->parent) return SUCCESS;
    for (unsigned i = 0; i < MAX_INSTANCES; i++) {
        struct Instance *each = &on->gpu->instances[i];
        if (each->present && !strcmp(each->uuid, device->uuid)) on->instance = each;
    }
    return on->instance && on->gpu->mig_current ? SUCCESS : INVALID_ARGUMENT;
}

Return enter_any(const char *function, Device device, struct Target *on, const void *answer) {
    Return code = begin(function, device);
    *on = (struct Target){0};
    if (!users) return UNINITIALIZED;
    if (code) return code;
    code = find(device, on);
    return code ? code : answer ? SUCCESS : INVALID_ARGUMENT;
}

Return enter_gpu(const char *function, Device device, struct Gpu **gpu, const void *answer) {
    struct Target on;
    Return code = enter_any(function, device, &on, answer);
    *gpu = on.gpu;
    return code ? code : on.instance ? INVALID_ARGUMENT : SUCCESS;
}

Return enter_fact(const char *function, Device device, enum Fact fact, struct Gpu **gpu,
                  const void *answer) {
    Return code = enter_gpu(function, device, gpu, answer);
    return code ? code : (*gpu)->facts & fact ? SUCCESS : NOT_SUPPORTED;
}

/* --- Beginning and ending --------------------------------------------------------------------- */

static Return initialise(const char *function) {
    Return code = begin(function, NULL);
    if (!users && !*path) return leave(LIBRARY_NOT_FOUND);
    if (!users && unreadable) return leave(UNKNOWN);
    if (code) return leave(code);
    if (users++) return leave(SUCCESS);
    for (Device each = handles; each; each = each->next) each->present = false;
    unsigned index = 0;
    for (unsigned i = 0; i < played->gpus; i++) {
        if (played->gpu[i].gone) continue;
        Device device = handle_of(played->gpu[i].uuid, NULL);
        device->present = true;
        device->index = index++;
    }
    return leave(SUCCESS);
}

API Return nvmlInit_v2(void) {
    return initialise(__func__);
}

API Return nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return initialise(__func__);
}

API Return nvmlShutdown(void) {
    Return code = enter(__func__, &users);
    if (code) return leave(code);
    if (!--users) forget_sets();
    return leave(SUCCESS);
}
