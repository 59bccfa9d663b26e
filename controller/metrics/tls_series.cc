#include "controller/metrics/tls_series.h"

namespace gnomon {

TlsSeries::TlsSeries(prometheus::Registry& registry)
    : handshake_failures_(prometheus::BuildCounter()
                              .Name("gnomon_tls_handshake_failures_total")
                              .Help("connections that ended before TLS was agreed on")
                              .Register(registry)
                              .Add({})),
      certificate_expiry_(prometheus::BuildGauge()
                              .Name("gnomon_tls_certificate_expiry_timestamp_seconds")
                              .Help("when the certificate that is served ends")
                              .Register(registry)
                              .Add({})),
      reload_successful_(prometheus::BuildGauge()
                             .Name("gnomon_tls_last_reload_successful")
                             .Help("1 while the certificate in force is the files'")
                             .Register(registry)
                             .Add({})) {}

}  // namespace gnomon
