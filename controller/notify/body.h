// How an alert goes over the wire: bodies, fingerprints, times and the signature. Pure.
#pragma once

#include <string>
#include <vector>

#include "controller/notify/alert.h"

namespace gnomon::notify {

// For how long a moment's alert is said to last.
inline constexpr double kHoldSeconds = 300;

// RFC 3339 in UTC, to the millisecond, without zeros at the end; Go's zero time for 0.
std::string rfc3339(double seconds);

// Alertmanager's: FNV-1a of 64 bits over the labels in their order, 16 hexadecimal digits.
std::string fingerprint(const std::map<std::string, std::string>& labels);

// Where people read about the run. `external_url` is where they reach the page; may be empty.
std::string page_of(const Alert& alert, const std::string& external_url);

// Alertmanager's webhook body, version 4, with this one alert. `delivery` becomes an annotation.
std::string webhook_body(const Alert& alert, const std::string& receiver,
                         const std::string& delivery, const std::string& external_url);

// "t=TIME,v1=HEX": HMAC-SHA256 over "TIME.BODY", one v1 for each secret. `time` in whole seconds
// since the epoch.
std::string signature(const std::string& body, int64_t time,
                      const std::vector<std::string>& secrets);

}  // namespace gnomon::notify
