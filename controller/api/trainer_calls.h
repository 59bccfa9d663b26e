// What every call of a trainer says of the process that makes it.
#pragma once

#include "controller/api/router.h"
#include "controller/api/services.h"

namespace gnomon {

// Query parameters of trainers and of whoever waits for work.
QueryParameter incarnation_parameter();
QueryParameter wait_parameter();

// audited_write() of a call of run `run`'s trainer, which is refused (409) when another process has
// taken the run over. Records a contact of the trainer.
void trainer_write(Exchange& exchange, Services& services, const Request& request, int64_t run,
                   const Ledger::Write& write);

}  // namespace gnomon
