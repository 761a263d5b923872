/* What the parts of the fake share: the described machine, NVML's codes, how a call begins. */
#ifndef FAKE_H
#define FAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_GPUS = 64, MAX_LINKS = 36, MAX_INSTANCES = 16, MAX_PAGES = 64, TEXT = 96 };
enum { ANYWHERE = -1, UNKNOWN_CLASS = -1 };

struct Address {
    unsigned domain, bus, device, function;
};

/* Which optional lines a GPU has; a question about any other is NOT_SUPPORTED. */
enum Fact {
    NUMA = 1 << 0,
    OWN_NUMA = 1 << 1,
    ECC = 1 << 2,
    PAGES = 1 << 3,
    ROWS = 1 << 4,
    UTILISATION = 1 << 5,
    ENERGY = 1 << 6,
    RECOVERY = 1 << 7,
    FABRIC = 1 << 8,
    MIG = 1 << 9,
    SPEED = 1 << 10,
    MEMORY = 1 << 11,
    CAPABILITY = 1 << 12,
};

enum Remote { REMOTE_GPU = 0, REMOTE_SWITCH = 2, REMOTE_UNKNOWN = 0xFF };

struct Link {
    bool present, active;
    unsigned version;
    enum Remote remote;
    struct Address address;
};

struct Instance {
    bool present;
    unsigned slot, gpu_instance, compute_instance, slices, compute_slices, multiprocessors;
    uint64_t memory;
    char uuid[TEXT], profile[TEXT];
};

struct Gpu {
    int number;
    unsigned facts; /* bits of enum Fact */
    bool lost, gone;
    char uuid[TEXT], name[TEXT];
    struct Address address;
    uint64_t memory, reserved, used;
    int numa, own_numa;
    int major, minor; /* of its compute capability */
    uint64_t corrected, uncorrected;
    unsigned retired, retirement_pending;
    uint64_t page_address[MAX_PAGES], page_time[MAX_PAGES];
    unsigned rows_corrected, rows_uncorrected, rows_pending, rows_failure;
    unsigned busy, memory_busy;
    uint64_t energy, milliwatts, since;
    unsigned recovery;
    unsigned fabric_state, clique;
    unsigned char cluster[16];
    unsigned mig_current, mig_pending, mig_maximum;
    struct Instance instances[MAX_INSTANCES];
    unsigned links, speed;
    struct Link link[MAX_LINKS];
};

struct Process {
    int gpu;
    bool graphics;
    unsigned pid, gpu_instance, compute_instance;
    uint64_t bytes;
};

struct Xid {
    uint64_t serial;
    int gpu;
    unsigned number;
};

struct Fault {
    char function[TEXT];
    bool hangs;
    unsigned code;
    int gpu; /* or ANYWHERE */
};

struct World {
    char driver[TEXT], nvml[TEXT];
    int cuda;
    unsigned gpus;
    struct Gpu gpu[MAX_GPUS];
    signed char class[MAX_GPUS][MAX_GPUS]; /* by position in gpu[]: NVML's level or UNKNOWN_CLASS */
    size_t processes, xids, faults;
    struct Process *process;
    struct Xid *xid; /* ascending serials */
    struct Fault *fault;
};

/* The world that `text` describes (which is cut up on the way), or NULL with the reason. */
struct World *world_of(char *text, char *reason, size_t room);
void world_free(struct World *world);

/* "0000:07:00.0", "00000000:07:00.0" or "07:00.0"; false where it is none of them. */
bool address_of(const char *text, struct Address *address);

#define API __attribute__((visibility("default")))

typedef enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    ALREADY_INITIALIZED = 5,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    INSUFFICIENT_POWER = 8,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    IRQ_ISSUE = 11,
    LIBRARY_NOT_FOUND = 12,
    FUNCTION_NOT_FOUND = 13,
    CORRUPTED_INFOROM = 14,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    OPERATING_SYSTEM = 17,
    VERSION_MISMATCH = 18,
    IN_USE = 19,
    OUT_OF_MEMORY = 20,
    NO_DATA = 21,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
} Return;

typedef struct Handle {
    char uuid[TEXT];
    struct Handle *parent; /* of a MIG instance: its GPU */
    bool present;          /* seen by the latest nvmlInit */
    unsigned index;        /* among those */
    struct Handle *next;
} *Device;

/* What a call about a device is about: a GPU, and the instance where the handle is a MIG one. */
struct Target {
    struct Gpu *gpu;
    struct Instance *instance;
};

/* The state, all of it under the lock that enter… takes and leave releases. */
extern struct World *played;
extern Device handles;
extern unsigned users; /* nvmlInit less nvmlShutdown */

Return enter(const char *function, const void *answer);
Return enter_any(const char *function, Device device, struct Target *on, const void *answer);
/* For what NVML answers of whole GPUs only. */
Return enter_gpu(const char *function, Device device, struct Gpu **gpu, const void *answer);
/* As enter_gpu, for what only some GPUs know: those with this kind of line. */
Return enter_fact(const char *function, Device device, enum Fact fact, struct Gpu **gpu,
                  const void *answer);
Return leave(Return code);

/* Unlocks for some milliseconds, then reads what has changed. */
void doze(void);

/* What a handle stands for now; fails as every call about it does. */
Return find(Device device, struct Target *on);
struct Gpu *gpu_of(const struct Handle *handle);
Device handle_of(const char *uuid, Device parent);

/* Frees every event set: the library is shut down. */
void forget_sets(void);

#endif
