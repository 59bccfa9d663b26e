#include "controller/daemon/served_certificate.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include "base/errors.h"

namespace gnomon {

// The stamps come first in all of these: a change in between is then seen at the next look.
ServedCertificate::ServedCertificate(const DaemonConfig& config, Metrics& metrics)
    : config_(config), metrics_(metrics), read_stamps_(stamps()) {
  ServerTls tls = load_tls(config_);
  metrics_.update([](DaemonNumbers& n) { n.has_tls = true; });
  serve(std::move(tls));
}

TlsContext ServedCertificate::context() const {
  const std::lock_guard lock(mutex_);
  return context_;
}

void ServedCertificate::configure(const DaemonConfig& config) {
  if (config.tls.files.certificate.empty()) return;
  config_ = config;
  read_again(true);
}

void ServedCertificate::look(double now) {
  if (now < next_look_) return;
  next_look_ = now + config_.tls.look_seconds;
  if (stamps() != read_stamps_ || !bad_.empty()) read_again(false);
}

// Without `log_again` the same trouble is not logged again.
void ServedCertificate::read_again(bool log_again) {
  read_stamps_ = stamps();
  try {
    serve(load_tls(config_));
    bad_.clear();
    spdlog::info("connections that begin now get the certificate in {}",
                 config_.tls.files.certificate);
  } catch (const Error& error) {
    metrics_.update([](DaemonNumbers& n) { n.tls_current = false; });
    if (!log_again && bad_ == error.what()) return;
    bad_ = error.what();
    spdlog::error("the certificate was not read again, the last good one stays: {}", error.what());
  }
}

void ServedCertificate::serve(ServerTls tls) {
  metrics_.update([&](DaemonNumbers& n) {
    n.tls_certificate_ends_at = tls.expires_at;
    n.tls_current = true;
  });
  const std::lock_guard lock(mutex_);
  context_ = std::move(tls.context);
}

std::vector<ServedCertificate::Stamp> ServedCertificate::stamps() const {
  std::vector<Stamp> found;
  for (const std::string* file :
       {&config_.tls.files.certificate, &config_.tls.files.key, &config_.tls.files.ca}) {
    struct stat status {};
    const bool there = !file->empty() && ::stat(file->c_str(), &status) == 0;
    found.push_back(there ? Stamp{static_cast<long long>(status.st_ino), status.st_size,
                                  status.st_mtim.tv_sec, status.st_mtim.tv_nsec}
                          : Stamp{});
  }
  return found;
}

}  // namespace gnomon
