// The records (protocol/records) in the document of the API: JSON Schema made of their members.
#pragma once

#include <boost/json/object.hpp>

namespace gnomon {

// Adds the schema of every record to `schemas`, which are those of an OpenAPI document. One that is
// there already (an example, a pattern that no rule has) is added to.
void add_record_schemas(boost::json::object& schemas);

}  // namespace gnomon
