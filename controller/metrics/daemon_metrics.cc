#include "base/version.h"
#include "controller/metrics/daemon_numbers.h"

namespace gnomon {
namespace {

using DaemonRow = MetricRow<DaemonNumbers>;
using N = DaemonNumbers;

constexpr std::array kIntegrityStates = {"pending", "ok", "failed", "lost"};

// A number of each receiver.
template <class Number>
auto of_receivers(Number ReceiverNumbers::*member) {
  return [member](const N& n, SampleWriter& out) {
    for (const auto& [name, receiver] : n.receivers) out.within({name}).add(receiver.*member);
  };
}

// There only where the daemon speaks TLS.
template <class Number>
auto of_tls(Number N::*member) {
  return [member](const N& n) { return n.has_tls ? std::optional(n.*member) : std::nullopt; };
}

void write_requests(const N& n, SampleWriter& out) {
  for (const auto& [key, count] : n.requests) out.add({key.first, key.second}, count);
}

void write_request_seconds(const N& n, SampleWriter& out) {
  for (const auto& [route, seconds] : n.request_seconds) out.add({route}, seconds);
}

void write_messages(const N& n, SampleWriter& out) {
  for (const auto& [name, receiver] : n.receivers) {
    for (const auto& [outcome, count] : receiver.messages) out.add({outcome, name}, count);
  }
}

WordValues unschedulable(const N& n) {
  const UnschedulableCounts& counts = n.replays_unschedulable;
  return {{"no_verifier", counts.no_verifier},
          {"labels", counts.labels},
          {"unsupported", counts.unsupported},
          {"quarantine", counts.quarantine}};
}

std::vector<DaemonRow> service_rows() {
  return {
      DaemonRow::gauge("gnomon_build_info", "always 1",
                       [](const N&, SampleWriter& out) {
                         out.add({kRevision, kVersion}, 1);
                       },
                       {"revision", "version"}),
      DaemonRow::gauge("gnomon_config_last_reload_successful",
                       "1 while the configuration in force is the file's", &N::config_current),
      DaemonRow::gauge("gnomon_config_last_reload_success_timestamp_seconds",
                       "when a configuration was last taken", &N::config_loaded_at),
      DaemonRow::gauge("gnomon_auth_last_reload_successful",
                       "0 while the file of tokens cannot be read, so that older ones are in force",
                       &N::tokens_current),
      DaemonRow::counter("gnomon_http_requests_total", "requests answered", write_requests,
                         {"code", "route"}),
      DaemonRow::histogram("gnomon_http_request_duration_seconds",
                           "time to answer, long polls excepted", write_request_seconds, {"route"}),
      DaemonRow::gauge("gnomon_http_connections",
                       "connections that are open, by whether their last request's sender is known",
                       [](const N& n) {
                         return WordValues{{"known", n.connections_known},
                                           {"stranger", n.connections_strangers}};
                       },
                       {"sender"}),
      DaemonRow::counter("gnomon_http_connections_refused_total",
                         "connections that were refused: all were taken, or a token had its share",
                         &N::connections_refused, {"reason"}),
      DaemonRow::counter("gnomon_http_connections_evicted_total",
                         "connections of strangers that were ended to make room for newcomers",
                         &N::connections_evicted),
      DaemonRow::gauge("gnomon_http_transfer_bytes",
                       "bytes of large bodies and answers that are on their way",
                       &N::transfer_bytes),
      DaemonRow::counter("gnomon_http_transfers_refused_total",
                         "requests that were refused since too many bytes were on their way",
                         &N::transfers_refused),
      DaemonRow::counter("gnomon_tls_handshake_failures_total",
                         "connections that ended before TLS was agreed on",
                         of_tls(&N::tls_handshake_failures)),
      DaemonRow::gauge("gnomon_tls_certificate_expiry_timestamp_seconds",
                       "when the certificate that is served ends",
                       of_tls(&N::tls_certificate_ends_at)),
      DaemonRow::gauge("gnomon_tls_last_reload_successful",
                       "1 while the certificate in force is the files'", of_tls(&N::tls_current)),
  };
}

std::vector<DaemonRow> work_rows() {
  return {
      DaemonRow::gauge("gnomon_replays_queued", "replays waiting for a verifier",
                       &N::replays_queued),
      DaemonRow::gauge("gnomon_replays_unserved",
                       "replays waiting that no verifier that speaks could do", unschedulable,
                       {"reason"}),
      DaemonRow::gauge("gnomon_runs_set_aside",
                       "runs that are not served: their decision state cannot be had",
                       &N::runs_set_aside),
      DaemonRow::gauge("gnomon_leases_active", "leases held now", &N::leases_active),
      DaemonRow::counter("gnomon_leases_total", "leases ended", &N::leases, {"outcome"}),
      DaemonRow::counter("gnomon_notifications_total",
                         "messages that a receiver has, tries that failed, messages dropped",
                         write_messages, {"outcome", "receiver"}),
      DaemonRow::gauge("gnomon_notifications_waiting", "messages that wait for their receiver",
                       of_receivers(&ReceiverNumbers::waiting), {"receiver"}),
      DaemonRow::gauge("gnomon_notifications_oldest_waiting_timestamp_seconds",
                       "since when the oldest of them waits",
                       of_receivers(&ReceiverNumbers::waiting_since), {"receiver"}),
  };
}

std::vector<DaemonRow> ledger_rows() {
  return {
      DaemonRow::counter("gnomon_ledger_commits_total", "transactions committed",
                         [](const N& n) { return n.commit_seconds.count(); }),
      DaemonRow::histogram("gnomon_ledger_commit_duration_seconds", "time of a commit",
                           &N::commit_seconds),
      DaemonRow::gauge("gnomon_ledger_queue_length", "writes waiting for the writer",
                       &N::ledger_queue_length),
      DaemonRow::gauge("gnomon_ledger_size_bytes", "the ledger's file", &N::ledger_bytes),
      DaemonRow::gauge("gnomon_ledger_wal_bytes", "its write-ahead log", &N::wal_bytes),
      DaemonRow::gauge(
          "gnomon_ledger_integrity",
          "1 for the state of the check of all pages; lost: its files are not there any more",
          [](const N& n) { return one_of(kIntegrityStates, n.integrity); }, {"state"}),
      DaemonRow::counter("gnomon_ledger_backups_total", "backups that were begun", &N::backups,
                         {"outcome"}),
      DaemonRow::gauge("gnomon_ledger_backup_last_success_timestamp_seconds",
                       "when the newest good backup was made", &N::backup_made_at),
      DaemonRow::counter("gnomon_ledger_rows_deleted_total",
                         "rows that were older than they are kept", &N::rows_deleted, {"table"}),
  };
}

}  // namespace

const std::vector<MetricRow<DaemonNumbers>>& daemon_metrics() {
  static const std::vector<DaemonRow> rows =
      joined<DaemonNumbers>({service_rows(), work_rows(), ledger_rows()});
  return rows;
}

}  // namespace gnomon
