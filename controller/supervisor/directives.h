// The life of directives between the core that issued them and the trainer.
#pragma once

#include <cstdint>

#include "controller/supervisor/run_cache.h"
#include "protocol/records.h"

namespace gnomon {

// Open directives above `after`; pending ones become delivered.
DirectiveList deliver_directives(WriteContext write, int64_t id, int64_t after);
// Throws HttpError. A repeat changes nothing.
Directive acknowledge_directive(WriteContext write, int64_t id, int64_t number,
                                const DirectiveAck& ack);

}  // namespace gnomon
