// What happens to runs as it is recorded, as server-sent events.
#include <fmt/format.h>

#include <charconv>

#include "controller/api/services.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

constexpr int kRowsAtOnce = 256;
constexpr size_t kBytesAtOnce = 256 << 10;  // what a client that does not read may cost
constexpr auto kHeartbeat = std::chrono::seconds(15);
// A browser waits so long before it comes again.
constexpr const char* kRetry = "retry: 2000\n\n";

// The id that the client has seen last; -1 when it says none.
int64_t asked_start(const Request& request) {
  const std::string& text = request.last_event_id;
  if (!text.empty()) {
    int64_t id = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    if (error != std::errc() || end != text.data() + text.size() || id < 0) {
      throw HttpError(400, "Header not accepted", fmt::format("Last-Event-ID is \"{}\"", text),
                      "an id of this stream");
    }
    return id;
  }
  return query_given(request, "after") ? query_integer(request, "after") : -1;
}

// The run whose events alone are asked for; 0 for all. Throws HttpError (404).
int64_t asked_run(Connection& connection, const Request& request) {
  const std::string text = query_text(request, "run");
  if (text.empty()) return 0;
  const int64_t run = parse_run_id(text);
  if (!ledger::load_run(connection, run)) throw unknown_run(text);
  return run;
}

// Where to go on: what was asked for, else now. Throws HttpError (410) when rows that should follow
// are gone, or when the id is none of this ledger's: the client must not believe that it missed
// nothing.
int64_t checked_start(Connection& connection, int64_t asked) {
  const ledger::StreamRange range = ledger::stream_range(connection);
  if (asked < 0) {
    return range.newest;
  }
  if (asked > range.newest || asked + 1 < range.oldest) {
    throw HttpError(
        410, "The stream has a gap",
        fmt::format("events after {} were asked for; there are those from {} to {}", asked,
                    range.oldest, range.newest),
        fmt::format("an id from {} to {}, or none for what comes from now on; the lists "
                    "of /v1/runs have everything",
                    range.oldest - 1, range.newest));
  }
  return asked;
}

// One client's way through the stream.
class Listener {
 public:
  Listener(Services& services, Exchange& exchange, int64_t run, int64_t last)
      : services_(services), exchange_(exchange), run_(run), last_(last) {}

  void follow() {
    ChangeNotifier& notifier = services_.notifiers.stream;
    std::optional<uint64_t> looked;  // the notification after which there was nothing more
    if (!exchange_.send(kRetry)) return;
    while (!services_.stopping) {
      const uint64_t seen = notifier.count();
      if (looked != seen) {
        std::string text;
        if (!read_next(text)) looked = seen;
        if (!known_) return;  // a week behind and overtaken: the client comes again and gets 410
        if (!text.empty() && !exchange_.send(text)) return;
        continue;
      }
      if (!exchange_.wait(notifier.after(seen), Exchange::Clock::now() + kHeartbeat)) {
        // With the id, so that who follows one run alone does not fall behind the others'.
        if (exchange_.over() || !exchange_.send(fmt::format(": still here\nid: {}\n\n", last_))) {
          return;
        }
      }
    }
  }

 private:
  // Adds what comes next to `text`; false when there is nothing more now.
  bool read_next(std::string& text) {
    std::vector<StreamEventPtr> rows = next_rows();
    for (const StreamEventPtr& row : rows) {
      if (row->id != last_ + 1) {
        known_ = false;
        break;
      }
      if (run_ == 0 || row->run == run_) text += row->text;
      last_ = row->id;
      if (text.size() >= kBytesAtOnce) break;
    }
    return !rows.empty();
  }

  std::vector<StreamEventPtr> next_rows() {
    if (auto newest = services_.notifiers.stream.tail.after(last_, kRowsAtOnce))
      return *std::move(newest);
    std::vector<StreamEventPtr> rows;
    read_patiently(exchange_, [&](Connection& connection) {
      rows.clear();
      for (const auto& row : ledger::stream_after(connection, last_, kRowsAtOnce)) {
        rows.push_back(make_stream_event(row.id, row.run, row.type, row.body));
      }
    });
    return rows;
  }

  Services& services_;
  Exchange& exchange_;
  int64_t run_;
  int64_t last_;
  bool known_ = true;
};

Response events(Services& services, Exchange& exchange, const Request& request) {
  const int64_t asked = asked_start(request);
  int64_t run = 0;
  int64_t last = 0;
  read_patiently(exchange, [&](Connection& connection) {
    run = asked_run(connection, request);
    last = checked_start(connection, asked);
  });
  Response response{200, "text/event-stream", "", {{"Cache-Control", "no-cache"}}, false};
  if (request.method == "HEAD") {
    response.open_ended = true;
    return response;
  }
  exchange.start_stream(response.content_type);
  Listener(services, exchange, run, last).follow();
  response.streamed = true;
  return response;
}

}  // namespace

std::vector<Route> event_routes(Services& s) {
  return {
      {"GET",
       "/v1/events",
       {},
       [&s](Exchange& e, const Request& request) { return events(s, e, request); },
       false,
       {integer_parameter("after", "The last id that the client has; `Last-Event-ID` is stronger.",
                          0, INT64_MAX, 0),
        text_parameter("run", "Events of this run alone, as `run-3` or `3`.")}}};
}

}  // namespace gnomon
