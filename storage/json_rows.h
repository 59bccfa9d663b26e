// Rows of the ledger as JSON for people and programs that read: objects with the schema's own
// column names. NaN (a NULL) is null, infinities are the strings "Infinity" and "-Infinity";
// columns that hold JSON stay JSON.
#pragma once

#include <string>
#include <vector>

#include "storage/ledger_connection.h"

namespace gnomon {

// The row that `query` stands on, as an object.
std::string row_as_json(Query& query);
// All rows, as an array.
std::string rows_as_json(Query& query);
// The first row as an object; "null" when there is none.
std::string first_row_as_json(Query& query);
// Adds to an array that is still open ("[" or "[1,2").
void append_element(std::string& array, const std::string& element);
std::string string_as_json(const std::string& text);

}  // namespace gnomon
