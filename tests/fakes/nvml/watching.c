/*
 * What a monitor asks again and again: load, processes, energy, health, field values, events.
 * nvml.c says how the parts work together.
 */
#define _POSIX_C_SOURCE 200809L

#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EVENT_SBE = 1, EVENT_DBE = 2, EVENT_XID = 8 };
enum { FIELD_SPEED = 90, FIELD_LINKS = 91, FIELD_RECOVERY = 230, FIELDS = 308 };
enum { VALUE_UNSIGNED_INT = 1, CAUSE_DOUBLE_BIT = 1 };

static const unsigned NO_INSTANCE = 0xFFFFFFFFU;

static uint64_t nanoseconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

/* --- Load ------------------------------------------------------------------------------------- */

struct Utilisation {
    unsigned gpu, memory;
};

API Return nvmlDeviceGetUtilizationRates(Device device, struct Utilisation *rates) {
    struct Gpu *on;
    Return code = enter_fact(__func__, device, UTILISATION, &on, rates);
    if (code) return leave(code);
    if (on->mig_current) return leave(NOT_SUPPORTED);
    *rates = (struct Utilisation){on->busy, on->memory_busy};
    return leave(SUCCESS);
}

struct ProcessInfo {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

static bool runs_on(const struct Process *process, bool graphics, const struct Target *on) {
    return process->gpu == on->gpu->number && process->graphics == graphics &&
           (!on->instance || process->gpu_instance == on->instance->gpu_instance);
}

/* `count` is the room on the way in and the number of processes on the way out. */
static Return processes(const struct Target *on, bool graphics, unsigned *count,
                        struct ProcessInfo *infos) {
    unsigned room = *count, found = 0;
    for (size_t i = 0; i < played->processes; i++) {
        const struct Process *each = &played->process[i];
        if (!runs_on(each, graphics, on)) continue;
        if (found < room && infos)
            infos[found] = (struct ProcessInfo){each->pid, each->bytes, each->gpu_instance,
                                                each->compute_instance};
        found++;
    }
    *count = found;
    return found > room || (found && !infos) ? INSUFFICIENT_SIZE : SUCCESS;
}

API Return nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count,
                                                   struct ProcessInfo *infos) {
    struct Target on;
    Return code = enter_any(__func__, device, &on, count);
    return leave(code ? code : processes(&on, false, count, infos));
}

API Return nvmlDeviceGetGraphicsRunningProcesses_v3(Device device, unsigned *count,
                                                    struct ProcessInfo *infos) {
    struct Target on;
    Return code = enter_any(__func__, device, &on, count);
    return leave(code ? code : processes(&on, true, count, infos));
}

API Return nvmlDeviceGetTotalEnergyConsumption(Device device, unsigned long long *millijoules) {
    struct Gpu *on;
    Return code = enter_fact(__func__, device, ENERGY, &on, millijoules);
    if (code) return leave(code);
    uint64_t now = nanoseconds(CLOCK_MONOTONIC);
    uint64_t milliseconds = now > on->since ? (now - on->since) / 1000000U : 0;
    *millijoules = on->energy + milliseconds * on->milliwatts / 1000U;
    return leave(SUCCESS);
}

/* --- Health ----------------------------------------------------------------------------------- */

API Return nvmlDeviceGetTotalEccErrors(Device device, unsigned uncorrected, unsigned counter,
                                       unsigned long long *count) {
    struct Gpu *on;
    const void *answer = uncorrected <= 1 && counter <= 1 ? count : NULL;
    Return code = enter_fact(__func__, device, ECC, &on, answer);
    if (!code) *count = uncorrected ? on->uncorrected : on->corrected;
    return leave(code);
}

/* pynvml asks for the number without a place for the times, and passes no fifth argument then. */
API Return nvmlDeviceGetRetiredPages_v2(Device device, unsigned cause, unsigned *count,
                                        unsigned long long *addresses, unsigned long long *times) {
    struct Gpu *on;
    Return code = enter_fact(__func__, device, PAGES, &on, cause <= 1 ? count : NULL);
    if (code) return leave(code);
    unsigned room = *count;
    *count = cause == CAUSE_DOUBLE_BIT ? on->retired : 0;
    if (*count > room || (*count && !addresses)) return leave(INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < *count; i++) {
        addresses[i] = on->page_address[i];
        times[i] = on->page_time[i];
    }
    return leave(SUCCESS);
}

API Return nvmlDeviceGetRetiredPagesPendingStatus(Device device, unsigned *pending) {
    struct Gpu *on;
    Return code = enter_fact(__func__, device, PAGES, &on, pending);
    if (!code) *pending = on->retirement_pending;
    return leave(code);
}

API Return nvmlDeviceGetRemappedRows(Device device, unsigned *corrected, unsigned *uncorrected,
                                     unsigned *pending, unsigned *failure) {
    struct Gpu *on;
    const void *answer = corrected && uncorrected && pending ? failure : NULL;
    Return code = enter_fact(__func__, device, ROWS, &on, answer);
    if (code) return leave(code);
    *corrected = on->rows_corrected;
    *uncorrected = on->rows_uncorrected;
    *pending = on->rows_pending;
    *failure = on->rows_failure;
    return leave(SUCCESS);
}

struct FieldValue {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type;
    unsigned code;
    union {
        unsigned number;
        unsigned long long space;
    } value;
};

static Return field(const struct Gpu *on, unsigned which, unsigned *value) {
    bool nvlinks = on->links && !on->mig_current;
    switch (which) {
    case FIELD_LINKS:
        *value = on->links;
        return nvlinks ? SUCCESS : NOT_SUPPORTED;
    case FIELD_SPEED:
        *value = on->speed;
        return nvlinks && on->facts & SPEED ? SUCCESS : NOT_SUPPORTED;
    case FIELD_RECOVERY:
        *value = on->recovery;
        return on->facts & RECOVERY ? SUCCESS : NOT_SUPPORTED;
    default:
        return which && which < FIELDS ? NOT_SUPPORTED : INVALID_ARGUMENT;
    }
}

/* The call succeeds; each value carries its own code. */
API Return nvmlDeviceGetFieldValues(Device device, int count, struct FieldValue *values) {
    struct Gpu *on;
    Return code = enter_gpu(__func__, device, &on, count > 0 ? values : NULL);
    if (code) return leave(code);
    for (int i = 0; i < count; i++) {
        unsigned value = 0;
        values[i].timestamp = (long long)(nanoseconds(CLOCK_REALTIME) / 1000U);
        values[i].latency = 0;
        values[i].type = VALUE_UNSIGNED_INT;
        values[i].code = field(on, values[i].field, &value);
        values[i].value.space = value;
    }
    return leave(SUCCESS);
}

/* --- Events ----------------------------------------------------------------------------------- */

typedef struct Set {
    bool alive;
    uint64_t generation; /* a freed set is used again */
    uint64_t delivered;  /* serial of the last event handed out */
    size_t members;
    struct Member {
        Device device;
        unsigned long long types;
        uint64_t since; /* the last event before it was registered */
    } member[MAX_GPUS];
    struct Set *next;
} *EventSet;

static EventSet sets;

static uint64_t latest(void) {
    return played->xids ? played->xid[played->xids - 1].serial : 0;
}

static bool living(const struct Set *set) {
    for (EventSet each = sets; each; each = each->next)
        if (each == set) return each->alive;
    return false;
}

void forget_sets(void) {
    for (EventSet each = sets; each; each = each->next) each->alive = false;
}

API Return nvmlEventSetCreate(EventSet *set) {
    Return code = enter(__func__, set);
    if (code) return leave(code);
    EventSet new = sets;
    while (new && new->alive) new = new->next;
    if (!new) {
        new = calloc(1, sizeof *new);
        if (!new) abort();
        new->next = sets;
        sets = new;
    }
    new->alive = true;
    new->generation++;
    new->delivered = latest();
    new->members = 0;
    *set = new;
    return leave(SUCCESS);
}

API Return nvmlEventSetFree(EventSet set) {
    Return code = enter(__func__, set);
    if (code) return leave(code);
    if (!living(set)) return leave(INVALID_ARGUMENT);
    set->alive = false;
    return leave(SUCCESS);
}

/* Only Xids are described; the ECC events can be registered and never come. */
static unsigned long long supported(const struct Gpu *on) {
    return EVENT_XID | (on->facts & ECC ? EVENT_SBE | EVENT_DBE : 0);
}

API Return nvmlDeviceGetSupportedEventTypes(Device device, unsigned long long *types) {
    struct Gpu *on;
    Return code = enter_gpu(__func__, device, &on, types);
    if (!code) *types = supported(on);
    return leave(code);
}

API Return nvmlDeviceRegisterEvents(Device device, unsigned long long types, EventSet set) {
    struct Gpu *on;
    Return code = enter_gpu(__func__, device, &on, set);
    if (code) return leave(code);
    if (!living(set)) return leave(INVALID_ARGUMENT);
    if (types & ~supported(on)) return leave(NOT_SUPPORTED);
    for (size_t i = 0; i < set->members; i++)
        if (set->member[i].device == device) {
            set->member[i].types |= types;
            return leave(SUCCESS);
        }
    if (set->members == MAX_GPUS) return leave(OUT_OF_MEMORY);
    set->member[set->members++] = (struct Member){device, types, latest()};
    return leave(SUCCESS);
}

struct EventData {
    Device device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

static bool next_event(EventSet set, struct EventData *data) {
    for (size_t i = 0; i < played->xids; i++) {
        const struct Xid *xid = &played->xid[i];
        if (xid->serial <= set->delivered) continue;
        for (size_t j = 0; j < set->members; j++) {
            const struct Member *member = &set->member[j];
            const struct Gpu *on = gpu_of(member->device);
            if (!on || on->number != xid->gpu || !(member->types & EVENT_XID)) continue;
            if (xid->serial <= member->since) continue;
            set->delivered = xid->serial;
            *data = (struct EventData){member->device, EVENT_XID, xid->number, NO_INSTANCE,
                                       NO_INSTANCE};
            return true;
        }
    }
    return false;
}

static bool one_is_lost(const struct Set *set) {
    for (size_t i = 0; i < set->members; i++) {
        struct Target on = {0};
        if (find(set->member[i].device, &on) == GPU_IS_LOST) return true;
    }
    return false;
}

/*
 * Events that are due come first. Then, for as long as a registered GPU is lost, the wait fails at
 * once, as NVML documents and drivers do after Xid 79 (NVIDIA/k8s-test-infra#746).
 */
API Return nvmlEventSetWait_v2(EventSet set, struct EventData *data, unsigned milliseconds) {
    Return code = enter(__func__, set ? data : NULL);
    if (code) return leave(code);
    if (!living(set)) return leave(INVALID_ARGUMENT);
    const uint64_t generation = set->generation;
    const uint64_t end = nanoseconds(CLOCK_MONOTONIC) + milliseconds * UINT64_C(1000000);
    for (;;) {
        if (!users) return leave(UNINITIALIZED);
        if (!set->alive || set->generation != generation) return leave(INVALID_ARGUMENT);
        if (next_event(set, data)) return leave(SUCCESS);
        if (one_is_lost(set)) return leave(GPU_IS_LOST);
        if (nanoseconds(CLOCK_MONOTONIC) >= end) return leave(TIMEOUT);
        doze();
    }
}
