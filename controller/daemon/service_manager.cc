#include "controller/daemon/service_manager.h"

#include <fmt/format.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include <algorithm>
#include <cstdint>

namespace gnomon {
namespace {

void notify_systemd(const std::string& state) { ::sd_notify(0, state.c_str()); }

int64_t monotonic_microseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1'000'000} * now.tv_sec + now.tv_nsec / 1000;
}

}  // namespace

void ServiceManager::ready(const std::string& status) {
  notify_systemd(fmt::format("READY=1\nSTATUS={}", status));
}

void ServiceManager::reloading() {
  notify_systemd(fmt::format("RELOADING=1\nMONOTONIC_USEC={}", monotonic_microseconds()));
}

void ServiceManager::stopping() {
  notify_systemd("STOPPING=1\nSTATUS=answering what is in flight");
}

void ServiceManager::alive() { notify_systemd("WATCHDOG=1"); }

std::optional<std::chrono::milliseconds> ServiceManager::watchdog_interval() {
  uint64_t microseconds = 0;
  if (::sd_watchdog_enabled(0, &microseconds) <= 0) return std::nullopt;
  return std::chrono::milliseconds(std::max<uint64_t>(microseconds / 2000, 1));
}

}  // namespace gnomon
