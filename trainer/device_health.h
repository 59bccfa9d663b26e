// How a GPU is, as the driver's NVML says: clocks, power, heat, memory, counted errors. NVML needs
// the driver alone, so this is built everywhere and does not care whether the CUDA toolkit or a
// device is there.
#pragma once

#include <memory>
#include <string>

#include "base/shared_library.h"
#include "protocol/records.h"

namespace gnomon {

// True when `text` can be a PCI bus id: domain, bus, device and function in hexadecimal digits,
// like "0000:01:00.0" (CUDA and lspci) or "00000000:01:00.0" (nvidia-smi).
bool is_pci_bus_id(const std::string& text);

class DeviceHealthReader {
 public:
  // Takes the GPU's PCI bus id, since CUDA's own numbers of devices differ from NVML's under
  // CUDA_VISIBLE_DEVICES. `library` is nvml::open_library() but in tests. Asks nothing yet. Throws
  // MissingLibrary when a function is not in it that every driver has.
  DeviceHealthReader(std::string bus_id, const SharedLibrary& library);
  ~DeviceHealthReader();
  DeviceHealthReader(const DeviceHealthReader&) = delete;
  DeviceHealthReader& operator=(const DeviceHealthReader&) = delete;

  // Asks the device once; the first time, and again after an error, the library is made ready and
  // the device looked for. What the device does not support, and what cannot be true, is absent. A
  // device that does not answer is reported in `error`; nothing is thrown. May take long where the
  // driver does.
  DeviceHealth read();

 private:
  struct Functions;

  bool connect(DeviceHealth& health);
  void disconnect();
  void ask(DeviceHealth& health);

  std::string bus_id_;
  std::unique_ptr<Functions> nvml_;
  void* device_ = nullptr;  // nvmlDevice_t
  bool ready_ = false;      // initialised
  std::string name_;
};

}  // namespace gnomon
