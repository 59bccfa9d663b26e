#include "controller/metrics/connection_series.h"

namespace gnomon {

ConnectionSeries::ConnectionSeries(prometheus::Registry& registry)
    : open_(prometheus::BuildGauge()
                .Name("gnomon_http_connections")
                .Help("connections that are open, by whether their last request's sender is known")
                .Register(registry)),
      known_(open_.Add({{"sender", "known"}})),
      strangers_(open_.Add({{"sender", "stranger"}})),
      refusals_(prometheus::BuildCounter()
                    .Name("gnomon_http_connections_refused_total")
                    .Help("connections that were refused: all were taken, or a token had its share")
                    .Register(registry)),
      full_(refusals_.Add({{"reason", "full"}})),
      of_token_(refusals_.Add({{"reason", "token"}})),
      evicted_(prometheus::BuildCounter()
                   .Name("gnomon_http_connections_evicted_total")
                   .Help("connections of strangers that were ended to make room for newcomers")
                   .Register(registry)
                   .Add({})),
      bytes_held_(prometheus::BuildGauge()
                      .Name("gnomon_http_transfer_bytes")
                      .Help("bytes of large bodies and answers that are on their way")
                      .Register(registry)
                      .Add({})),
      of_bytes_(prometheus::BuildCounter()
                    .Name("gnomon_http_transfers_refused_total")
                    .Help("requests that were refused since too many bytes were on their way")
                    .Register(registry)
                    .Add({})) {}

void ConnectionSeries::set_open(size_t known, size_t strangers) {
  known_.Set(static_cast<double>(known));
  strangers_.Set(static_cast<double>(strangers));
}

}  // namespace gnomon
