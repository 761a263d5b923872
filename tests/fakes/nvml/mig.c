/*
 * What NVML answers of MIG: the mode of a GPU, its instances, and the profiles that they have.
 * nvml.c says how the parts work together.
 *
 * A MIG device is a compute instance in a GPU instance; NVML has handles for all three. Here every
 * GPU instance has one compute instance. The number of a profile in NVML's enumerations is also its
 * id, where drivers have ids that differ from one GPU model to the next: who compares ids, as
 * NVIDIA's device plugin does to find the profile of an instance, sees no difference.
 */
#define _POSIX_C_SOURCE 200809L

#include "fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static Return enter_mig(const char *function, Device device, struct Target *on,
                        const void *answer) {
    Return code = enter_any(function, device, on, answer);
    return code ? code : on->instance ? SUCCESS : INVALID_ARGUMENT;
}

/* --- Devices ---------------------------------------------------------------------------------- */

API Return nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) {
    struct Gpu *on;
    Return code = enter_fact(__func__, device, MIG, &on, pending ? current : NULL);
    if (!code) *current = on->mig_current, *pending = on->mig_pending;
    return leave(code);
}

API Return nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count) {
    struct Gpu *on;
    Return code = enter_gpu(__func__, device, &on, count);
    if (!code) *count = on->mig_current ? on->mig_maximum : 0;
    return leave(code);
}

API Return nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *mig) {
    struct Gpu *on;
    Return code = enter_fact(__func__, device, MIG, &on, mig);
    if (code) return leave(code);
    if (!on->mig_current || index >= MAX_INSTANCES || !on->instances[index].present)
        return leave(NOT_FOUND);
    *mig = handle_of(on->instances[index].uuid, device);
    return leave(SUCCESS);
}

API Return nvmlDeviceIsMigDeviceHandle(Device device, unsigned *is) {
    struct Target on;
    Return code = enter_any(__func__, device, &on, is);
    if (!code) *is = on.instance != NULL;
    return leave(code);
}

API Return nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device mig, Device *device) {
    struct Target on;
    Return code = enter_mig(__func__, mig, &on, device);
    if (!code) *device = mig->parent;
    return leave(code);
}

API Return nvmlDeviceGetGpuInstanceId(Device device, unsigned *id) {
    struct Target on;
    Return code = enter_mig(__func__, device, &on, id);
    if (!code) *id = on.instance->gpu_instance;
    return leave(code);
}

API Return nvmlDeviceGetComputeInstanceId(Device device, unsigned *id) {
    struct Target on;
    Return code = enter_mig(__func__, device, &on, id);
    if (!code) *id = on.instance->compute_instance;
    return leave(code);
}

struct Attributes {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, slices;
    unsigned compute_slices;
    unsigned long long mib;
};

API Return nvmlDeviceGetAttributes_v2(Device device, struct Attributes *attributes) {
    struct Target on;
    Return code = enter_mig(__func__, device, &on, attributes);
    if (!code)
        *attributes = (struct Attributes){
            .multiprocessors = on.instance->multiprocessors,
            .copy_engines = on.instance->slices,
            .slices = on.instance->slices,
            .compute_slices = on.instance->compute_slices,
            .mib = on.instance->memory >> 20,
        };
    return leave(code);
}

/* --- Instances -------------------------------------------------------------------------------- */

/* What NVML's handle of a GPU instance, or of a compute instance in one, points to. */
typedef struct Part {
    Device device;
    bool computes; /* a compute instance */
    unsigned gpu_instance;
    struct Part *next;
} *Part;

/* Only ever grows at its head; its own lock, since the GPU's is taken with the handle's device. */
static Part parts;
static pthread_mutex_t parts_lock = PTHREAD_MUTEX_INITIALIZER;

static Part part_of(Device device, bool computes, unsigned gpu_instance) {
    pthread_mutex_lock(&parts_lock);
    Part found = parts;
    while (found && (found->device != device || found->computes != computes ||
                     found->gpu_instance != gpu_instance))
        found = found->next;
    if (!found) {
        found = calloc(1, sizeof *found);
        if (!found) abort();
        *found = (struct Part){device, computes, gpu_instance, parts};
        parts = found;
    }
    pthread_mutex_unlock(&parts_lock);
    return found;
}

/* The GPU that a handle belongs to; NULL for what is no handle of this kind. */
static Device device_of(Part part, bool computes) {
    pthread_mutex_lock(&parts_lock);
    Part found = parts;
    while (found && found != part) found = found->next;
    pthread_mutex_unlock(&parts_lock);
    return found && found->computes == computes ? found->device : NULL;
}

static const struct Instance *instance_of(const struct Gpu *on, unsigned gpu_instance) {
    for (unsigned i = 0; on->mig_current && i < MAX_INSTANCES; i++)
        if (on->instances[i].present && on->instances[i].gpu_instance == gpu_instance)
            return &on->instances[i];
    return NULL;
}

/* As enter_gpu, by the handle of an instance; INVALID_ARGUMENT once the instance is destroyed. */
static Return enter_part(const char *function, Part part, bool computes,
                         const struct Instance **instance, struct Gpu **gpu, const void *answer) {
    Return code = enter_gpu(function, device_of(part, computes), gpu, answer);
    if (code) return code;
    *instance = instance_of(*gpu, part->gpu_instance);
    return *instance ? SUCCESS : INVALID_ARGUMENT;
}

API Return nvmlDeviceGetGpuInstanceById(Device device, unsigned id, Part *part) {
    struct Gpu *on;
    Return code = enter_fact(__func__, device, MIG, &on, part);
    if (code) return leave(code);
    if (!on->mig_current) return leave(NOT_SUPPORTED);
    if (!instance_of(on, id)) return leave(NOT_FOUND);
    *part = part_of(device, false, id);
    return leave(SUCCESS);
}

API Return nvmlGpuInstanceGetComputeInstanceById(Part part, unsigned id, Part *computes) {
    struct Gpu *on;
    const struct Instance *instance;
    Return code = enter_part(__func__, part, false, &instance, &on, computes);
    if (code) return leave(code);
    if (instance->compute_instance != id) return leave(NOT_FOUND);
    *computes = part_of(part->device, true, part->gpu_instance);
    return leave(SUCCESS);
}

/* --- Profiles --------------------------------------------------------------------------------- */

enum { PROFILES = 18, WHOLE_PROFILES = 7, COMPUTE_PROFILES = 9 };

/*
 * A profile by its number: slices, memory in eighths of a GPU of seven slices, what its name ends
 * with, and the slices of the GPUs that have it, 0 for all. Of a GPU with four slices memory goes
 * with them: two eighths each. Numbers are NVML's, sizes those of NVIDIA's MIG user guide.
 */
static const struct Profile {
    unsigned slices, eighths;
    const char *suffix;
    unsigned on;
} profiles[PROFILES] = {
    [0] = {1, 1, "", 0},         [1] = {2, 2, "", 0},         [2] = {3, 4, "", 7},
    [3] = {4, 4, "", 0},         [4] = {7, 8, "", 7},         [7] = {1, 1, "+me", 0},
    [8] = {2, 2, "+me", 4},      [9] = {1, 2, "", 7},         [10] = {1, 1, "+gfx", 4},
    [11] = {2, 2, "+gfx", 4},    [12] = {4, 4, "+gfx", 4},    [13] = {1, 1, "-me", 4},
    [14] = {2, 2, "-me", 4},     [15] = {1, 1, "+me.all", 4}, [16] = {2, 2, "+me.all", 4},
};

/* Of what is not cut out of a whole instance the number says the slices alone. */
static unsigned whole_profile(unsigned slices) {
    for (unsigned number = 0; number < WHOLE_PROFILES; number++)
        if (profiles[number].slices == slices) return number;
    return PROFILES;
}

static bool offered(const struct Gpu *on, unsigned number) {
    const struct Profile *profile = &profiles[number];
    return profile->slices && profile->slices <= on->mig_maximum &&
           (!profile->on || profile->on == on->mig_maximum);
}

static unsigned long long mib_of(const struct Gpu *on, unsigned number) {
    const struct Profile *profile = &profiles[number];
    const unsigned eighths = on->mig_maximum > 4 ? profile->eighths : 2 * profile->slices;
    return (on->memory >> 20) * eighths / 8;
}

/* By the end of its name and its slices; where two differ in memory alone, the least that holds it. */
static unsigned profile_of(const struct Gpu *on, const struct Instance *instance) {
    const size_t plain = strcspn(instance->profile, "+-");
    unsigned found = PROFILES;
    for (unsigned number = 0; number < PROFILES; number++)
        if (offered(on, number) && profiles[number].slices == instance->slices &&
            !strcmp(profiles[number].suffix, instance->profile + plain) &&
            (found == PROFILES || mib_of(on, found) < instance->memory >> 20))
            found = number;
    return found;
}

struct ProfileInfo {
    unsigned id, peer_to_peer, slices, instances, multiprocessors, copy_engines, decoders, encoders,
        jpegs, ofas;
    unsigned long long mib;
};

/* Multiprocessors and engines are not described apart from instances: 0, copy engines aside. */
API Return nvmlDeviceGetGpuInstanceProfileInfo(Device device, unsigned number,
                                               struct ProfileInfo *info) {
    struct Gpu *on;
    Return code = enter_fact(__func__, device, MIG, &on, number < PROFILES ? info : NULL);
    if (code) return leave(code);
    if (!offered(on, number)) return leave(NOT_SUPPORTED);
    const struct Profile *profile = &profiles[number];
    const unsigned parts = on->mig_maximum > 4 ? 8 / profile->eighths : 4 / profile->slices;
    const unsigned fit = on->mig_maximum / profile->slices;
    *info = (struct ProfileInfo){
        .id = number,
        .slices = profile->slices,
        .instances = !strcmp(profile->suffix, "+me") ? 1 : parts < fit ? parts : fit,
        .copy_engines = profile->slices,
        .mib = mib_of(on, number),
    };
    return leave(SUCCESS);
}

struct ComputeProfileInfo {
    unsigned id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
};

API Return nvmlGpuInstanceGetComputeInstanceProfileInfo(Part part, unsigned number,
                                                        unsigned engines,
                                                        struct ComputeProfileInfo *info) {
    struct Gpu *on;
    const struct Instance *instance;
    const bool known = number < COMPUTE_PROFILES && !engines; /* engines: shared, the only kind */
    Return code = enter_part(__func__, part, false, &instance, &on, known ? info : NULL);
    if (code) return leave(code);
    const unsigned slices = number < WHOLE_PROFILES ? profiles[number].slices : 0;
    if (!slices || slices > instance->slices) return leave(NOT_SUPPORTED);
    *info = (struct ComputeProfileInfo){
        .id = number,
        .slices = slices,
        .instances = instance->slices / slices,
        .copy_engines = instance->slices,
    };
    return leave(SUCCESS);
}

struct Placement {
    unsigned start, size;
};

struct GpuInstanceInfo {
    Device device;
    unsigned id, profile;
    struct Placement placement; /* where an instance begins is not described: 0 */
};

API Return nvmlGpuInstanceGetInfo(Part part, struct GpuInstanceInfo *info) {
    struct Gpu *on;
    const struct Instance *instance;
    Return code = enter_part(__func__, part, false, &instance, &on, info);
    if (code) return leave(code);
    *info = (struct GpuInstanceInfo){
        part->device, part->gpu_instance, profile_of(on, instance), {0, instance->slices}};
    return leave(SUCCESS);
}

struct ComputeInstanceInfo {
    Device device;
    Part gpu_instance;
    unsigned id, profile;
    struct Placement placement;
};

API Return nvmlComputeInstanceGetInfo_v2(Part part, struct ComputeInstanceInfo *info) {
    struct Gpu *on;
    const struct Instance *instance;
    Return code = enter_part(__func__, part, true, &instance, &on, info);
    if (code) return leave(code);
    *info = (struct ComputeInstanceInfo){
        part->device,
        part_of(part->device, false, part->gpu_instance),
        instance->compute_instance,
        whole_profile(instance->compute_slices),
        {0, instance->compute_slices},
    };
    return leave(SUCCESS);
}
