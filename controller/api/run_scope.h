// Tokens that are for some runs alone: what changes a run, or takes what is its trainer's, is let
// through to the runs of the token's names. Reading is not limited so.
#pragma once

#include <vector>

#include "controller/api/router.h"

namespace gnomon {

// Throws HttpError (403) when the request's token is not for this run. One that is not on record is
// let through: whoever looks for it says so. Costs a read of the ledger where the token has names.
void check_run(Exchange& exchange, const Request& request, int64_t run);
// The same of the run that a lease is of.
void check_lease(Exchange& exchange, const Request& request, int64_t lease);

// The routes, of which those that change a {run} are checked first.
std::vector<Route> within_runs(std::vector<Route> routes);

}  // namespace gnomon
