// Notices: sentences for people, from a trainer or from gnomond about a run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "controller/supervisor/run_cache.h"
#include "controller/supervisor/set_aside.h"
#include "protocol/records.h"

namespace gnomon {

// Throws HttpError. The same notice twice is kept once.
ReportAck report_notice(WriteContext write, int64_t id, const TrainerNotice& notice);
// gnomond's own word for people, of a kind of kOwnNoticeKinds; no decision rests on it.
void add_own_notice(WriteContext write, int64_t id, std::string_view kind, const std::string& text);
// Records a notice and stops giving out the run's work.
void report_set_aside(WriteContext write, const SetAsideRuns::Entry& entry);
// False when the very same notice is on record.
bool add_notice(WriteContext write, const CachedRun& run, const TrainerNotice& notice);

}  // namespace gnomon
