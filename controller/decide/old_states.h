// States that earlier versions of the decision core wrote.
#pragma once

#include <boost/json/object.hpp>

namespace gnomon::decide {

// Brings it to the members that state_from_json() reads; a state of this version stays as it is. A
// case that was open is opened anew: its window's alarm is judged again with the next event.
void upgrade_state(boost::json::object& state);

}  // namespace gnomon::decide
