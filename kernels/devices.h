// What an engine computes on, and the backends for it. The backends of a device are a library of
// their own (gnomon_devices), so that nothing else needs the toolkit.
#pragma once

#include <string>

#include "kernels/backend.h"

namespace gnomon {

enum class Device { kCpu, kCuda };
std::string device_name(Device device);  // "cpu", "cuda"
// Throws ConfigError naming the accepted ones.
Device device_from_name(const std::string& name, const std::string& file);

// Those of this build. They throw ConfigError where it has none for the device or none of that
// element type there, NoCudaDevice (kernels/cuda/device.h), MissingLibrary or Error where the
// device cannot be used, each saying why.
BackendMakers backend_makers(Device device);

// The PCI bus id of the GPU that this process computes on, as nvidia-smi shows it; empty for the
// CPU. Throws as the makers do.
std::string device_bus_id(Device device);

// True when the device could be used here and now; never throws. A GPU's driver is asked.
bool device_is_there(Device device);

}  // namespace gnomon
