/* See metal_device.h.
 *
 * The code keeps to what gcc's and Apple's compilers share, so that Linux can compile it against a stand-in: no ARC, no
 * blocks, no literals of objects. What one call autoreleases, it drains.
 */
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "metal_device.h"

enum { LANES = 32, RECORDS_AT = 2, OWN_AT = 3, OLDEST_MACOS = 11 };

/* Sets of buffers that stay resident: macOS 15 has them, and older SDKs do not declare them. */
@protocol LatticeResidency
- (id)newResidencySetWithDescriptor:(id)descriptor error:(NSError **)error;
- (void)addResidencySet:(id)set;
- (void)addAllocation:(id)buffer;
- (void)removeAllocation:(id)buffer;
- (void)commit;
- (void)requestResidency;
@end

struct lattice_metal {
    id<MTLDevice> device;
    id<MTLCommandQueue> queue;
    id<MTLLibrary> library;
    id<LatticeResidency> resident; /* nil before macOS 15 */
    NSLock *lock;                  /* of the set of resident buffers */
    int is_changed;                /* since residency was requested */
};

static NSString *text(const char *characters) { return [NSString stringWithUTF8String:characters]; }

static void say(char *message, const char *what, NSError *error) {
    const char *why = error == nil ? "no reason given" : [[error localizedDescription] UTF8String];
    snprintf(message, METAL_MESSAGE_BYTES, "%s: %s", what, why == NULL ? "no reason given" : why);
}

/* Fast math is off: masks need exp(-inf) = 0, and results are promised within the tolerances of exact rounding. */
static MTLCompileOptions *compile_options(void) {
    MTLCompileOptions *options = [[[MTLCompileOptions alloc] init] autorelease];
    [options setFastMathEnabled:NO];
    [options setLanguageVersion:MTLLanguageVersion2_3];
    return options;
}

/* Returns a retained library, or nil with both reasons in `message`; `how` says which one it is. */
static id<MTLLibrary> open_library(id<MTLDevice> device, const char *path, const char *source, char *how,
                                   char *message) {
    char refused[METAL_MESSAGE_BYTES] = "no library was built";
    NSError *error = nil;
    id<MTLLibrary> library = nil;
    if (path != NULL) {
        library = [device newLibraryWithURL:[NSURL fileURLWithPath:text(path)] error:&error];
        if (library != nil) {
            snprintf(how, METAL_MESSAGE_BYTES, "library compiled when Lattice was built");
            return library;
        }
        say(refused, "the built library was refused", error);
    }
    error = nil;
    library = [device newLibraryWithSource:text(source) options:compile_options() error:&error];
    if (library != nil) {
        snprintf(how, METAL_MESSAGE_BYTES, "source compiled here, since %.*s", METAL_MESSAGE_BYTES / 2, refused);
        return library;
    }
    char why[METAL_MESSAGE_BYTES];
    say(why, "the source was refused", error);
    snprintf(message, METAL_MESSAGE_BYTES, "%.*s; %.*s", METAL_MESSAGE_BYTES / 4, refused, METAL_MESSAGE_BYTES / 2, why);
    return nil;
}

static void open_residency(lattice_metal *opened) {
    Class descriptors = NSClassFromString(text("MTLResidencySetDescriptor"));
    if (descriptors == Nil || ![(id)opened->device respondsToSelector:@selector(newResidencySetWithDescriptor:error:)])
        return;
    id descriptor = [[[descriptors alloc] init] autorelease];
    NSError *error = nil;
    opened->resident = [(id<LatticeResidency>)opened->device newResidencySetWithDescriptor:descriptor error:&error];
    if (opened->resident != nil) [(id<LatticeResidency>)opened->queue addResidencySet:opened->resident];
}

static int open_on(id<MTLDevice> device, const char *library, const char *source, lattice_metal *opened,
                   lattice_metal_facts *facts, char *message) {
    NSOperatingSystemVersion system = [[NSProcessInfo processInfo] operatingSystemVersion];
    snprintf(facts->system, sizeof facts->system, "macOS %ld.%ld.%ld", (long)system.majorVersion,
             (long)system.minorVersion, (long)system.patchVersion);
    snprintf(facts->name, sizeof facts->name, "%s", [[device name] UTF8String]);
    if (system.majorVersion < OLDEST_MACOS) {
        snprintf(message, METAL_MESSAGE_BYTES, "%s is too old: Metal's kernels need macOS %d", facts->system, OLDEST_MACOS);
        return METAL_UNSUITED;
    }
    if (![device supportsFamily:MTLGPUFamilyApple7]) {
        snprintf(message, METAL_MESSAGE_BYTES, "%s has no products of matrices in a simdgroup, as Apple's M1 and later have",
                 facts->name);
        return METAL_UNSUITED;
    }
    opened->queue = [device newCommandQueue];
    if (opened->queue == nil) {
        snprintf(message, METAL_MESSAGE_BYTES, "%s gives no command queue", facts->name);
        return METAL_NO_DEVICE;
    }
    opened->library = open_library(device, library, source, facts->library, message);
    if (opened->library == nil) return METAL_REFUSED;
    open_residency(opened);
    facts->has_residency = opened->resident != nil;
    facts->most_buffer_bytes = [device maxBufferLength];
    facts->working_set_bytes = [device recommendedMaxWorkingSetSize];
    return METAL_OK;
}

int lattice_metal_open(const char *library, const char *source, lattice_metal **device, lattice_metal_facts *facts,
                       char *message) {
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
    lattice_metal *opened = calloc(1, sizeof *opened);
    int status = METAL_NO_MEMORY;
    memset(facts, 0, sizeof *facts);
    snprintf(message, METAL_MESSAGE_BYTES, "no memory is left");
    if (opened != NULL) {
        opened->lock = [[NSLock alloc] init];
        opened->device = MTLCreateSystemDefaultDevice();
        snprintf(message, METAL_MESSAGE_BYTES, "this machine has no Metal device");
        status = METAL_NO_DEVICE;
        if (opened->device != nil) status = open_on(opened->device, library, source, opened, facts, message);
        if (status != METAL_OK) {
            lattice_metal_close(opened);
            opened = NULL;
        }
    }
    *device = opened;
    [pool drain];
    return status;
}

void lattice_metal_close(lattice_metal *device) {
    if (device == NULL) return;
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
    [(id)device->resident release];
    [device->library release];
    [device->queue release];
    [device->device release];
    [device->lock release];
    free(device);
    [pool drain];
}

void lattice_metal_release(void *object) {
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
    [(id)object release];
    [pool drain];
}

uint64_t lattice_metal_allocated(lattice_metal *device) { return [device->device currentAllocatedSize]; }

int lattice_metal_buffer(lattice_metal *device, void *pages, uint64_t bytes, void **buffer) {
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
    id<MTLBuffer> made = nil;
    if (pages == NULL)
        made = [device->device newBufferWithLength:bytes options:MTLResourceStorageModeShared];
    else
        made = [device->device newBufferWithBytesNoCopy:pages
                                                 length:bytes
                                                options:MTLResourceStorageModeShared
                                            deallocator:nil];
    *buffer = made;
    [pool drain];
    return made == nil ? METAL_NO_MEMORY : METAL_OK;
}

void *lattice_metal_contents(void *buffer) { return [(id<MTLBuffer>)buffer contents]; }

void lattice_metal_keep(lattice_metal *device, void *buffer) {
    if (device->resident == nil) return;
    [device->lock lock];
    [device->resident addAllocation:(id)buffer];
    device->is_changed = 1;
    [device->lock unlock];
}

void lattice_metal_forget(lattice_metal *device, void *buffer) {
    if (device->resident == nil) return;
    [device->lock lock];
    [device->resident removeAllocation:(id)buffer];
    device->is_changed = 1;
    [device->lock unlock];
}

/* Returns a retained pipeline, or nil with the reason in `message`. */
static id<MTLComputePipelineState> make_pipeline(lattice_metal *device, const char *function,
                                                 MTLFunctionConstantValues *constants, char *message) {
    NSError *error = nil;
    id<MTLFunction> made = [device->library newFunctionWithName:text(function) constantValues:constants error:&error];
    if (made == nil) {
        say(message, function, error);
        return nil;
    }
    error = nil;
    id<MTLComputePipelineState> pipeline = [device->device newComputePipelineStateWithFunction:made error:&error];
    if (pipeline == nil) say(message, function, error);
    [made release];
    return pipeline;
}

int lattice_metal_kernel(lattice_metal *device, const char *function, const uint32_t *indices, const uint32_t *values,
                         uint32_t constants, uint32_t threads, void **kernel, char *message) {
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
    MTLFunctionConstantValues *known = [[[MTLFunctionConstantValues alloc] init] autorelease];
    for (uint32_t i = 0; i < constants; i++)
        [known setConstantValue:&values[i] type:MTLDataTypeUInt atIndex:indices[i]];
    id<MTLComputePipelineState> pipeline = make_pipeline(device, function, known, message);
    int status = pipeline == nil ? METAL_REFUSED : METAL_OK;
    if (pipeline != nil && ([pipeline threadExecutionWidth] != LANES || [pipeline maxTotalThreadsPerThreadgroup] < threads)) {
        snprintf(message, METAL_MESSAGE_BYTES, "%s: the GPU has simdgroups of %lu lanes and threadgroups of %lu, not %d and %u",
                 function, (unsigned long)[pipeline threadExecutionWidth],
                 (unsigned long)[pipeline maxTotalThreadsPerThreadgroup], LANES, threads);
        [pipeline release];
        pipeline = nil;
        status = METAL_UNSUITED;
    }
    *kernel = pipeline;
    [pool drain];
    return status;
}

/* Ask for the residency of buffers that came or went; once for all of them. */
static void settle_residency(lattice_metal *device) {
    if (device->resident == nil) return;
    [device->lock lock];
    if (device->is_changed) {
        [device->resident commit];
        [device->resident requestResidency];
        device->is_changed = 0;
    }
    [device->lock unlock];
}

static void encode_calls(id<MTLComputeCommandEncoder> encoder, const lattice_metal_call *calls, uint64_t count,
                         MTLSize threads) {
    void *last = NULL;
    for (uint64_t i = 0; i < count; i++) {
        const lattice_metal_call *call = &calls[i];
        if (call->kernel != last) [encoder setComputePipelineState:(id<MTLComputePipelineState>)call->kernel];
        last = call->kernel;
        [encoder setBufferOffset:call->record atIndex:RECORDS_AT];
        for (uint32_t k = 0; k < call->count; k++)
            [encoder setBuffer:(id<MTLBuffer>)call->buffers[k] offset:call->offsets[k] atIndex:OWN_AT + k];
        [encoder dispatchThreadgroups:MTLSizeMake(call->groups, 1, 1) threadsPerThreadgroup:threads];
    }
}

int lattice_metal_encode_calls(lattice_metal *device, void *arena, void *words, void *records, uint32_t threads,
                               const lattice_metal_call *calls, uint64_t count, void **commands) {
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
    /* Keeps what it uses until it has ended. A serial encoder runs one call after the other. */
    id<MTLCommandBuffer> made = [[device->queue commandBuffer] retain];
    id<MTLComputeCommandEncoder> encoder = [made computeCommandEncoder];
    if (encoder != nil) {
        [encoder setBuffer:(id<MTLBuffer>)arena offset:0 atIndex:0];
        [encoder setBuffer:(id<MTLBuffer>)words offset:0 atIndex:1];
        [encoder setBuffer:(id<MTLBuffer>)records offset:0 atIndex:RECORDS_AT];
        encode_calls(encoder, calls, count, MTLSizeMake(threads, 1, 1));
        [encoder endEncoding];
    } else {
        [made release];
        made = nil;
    }
    *commands = made;
    [pool drain];
    return made == nil ? METAL_FAILED : METAL_OK;
}

/* Whether a copy reads or overwrites what an earlier one of the encoder writes or reads. */
static int depends(const lattice_metal_copying *copies, uint64_t first, uint64_t index) {
    for (uint64_t i = first; i < index; i++)
        if (copies[index].source == copies[i].target || copies[index].target == copies[i].target ||
            copies[index].target == copies[i].source)
            return 1;
    return 0;
}

/* Copies of one encoder may overlap in time; one that needs an earlier one has the next encoder. */
static int encode_copies(id<MTLCommandBuffer> commands, const lattice_metal_copying *copies, uint64_t count) {
    for (uint64_t first = 0, next = 0; first < count; first = next) {
        id<MTLBlitCommandEncoder> encoder = [commands blitCommandEncoder];
        if (encoder == nil) return 0;
        for (next = first; next < count && !depends(copies, first, next); next++)
            [encoder copyFromBuffer:(id<MTLBuffer>)copies[next].source
                       sourceOffset:copies[next].source_offset
                           toBuffer:(id<MTLBuffer>)copies[next].target
                  destinationOffset:copies[next].target_offset
                               size:copies[next].bytes];
        [encoder endEncoding];
    }
    return 1;
}

int lattice_metal_encode_copies(lattice_metal *device, const lattice_metal_copying *copies, uint64_t count,
                                void **commands) {
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
    id<MTLCommandBuffer> made = [[device->queue commandBuffer] retain];
    if (made != nil && !encode_copies(made, copies, count)) {
        [made release];
        made = nil;
    }
    *commands = made;
    [pool drain];
    return made == nil ? METAL_FAILED : METAL_OK;
}

void lattice_metal_commit(lattice_metal *device, void *commands) {
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
    settle_residency(device);
    [(id<MTLCommandBuffer>)commands commit];
    [pool drain];
}

int32_t lattice_metal_has_ended(void *commands) {
    return [(id<MTLCommandBuffer>)commands status] >= MTLCommandBufferStatusCompleted;
}

int lattice_metal_wait(void *commands, char *message) {
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
    id<MTLCommandBuffer> waited = (id<MTLCommandBuffer>)commands;
    [waited waitUntilCompleted];
    int status = METAL_OK;
    if ([waited status] != MTLCommandBufferStatusCompleted) {
        NSError *error = [waited error];
        say(message, "a command buffer failed", error);
        status = METAL_FAILED;
        if (error != nil && [error code] == MTLCommandBufferErrorOutOfMemory) status = METAL_NO_MEMORY;
    }
    [pool drain];
    return status;
}
