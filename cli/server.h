// What the command line asks gnomond: rows of its tables as JSON, with the names of
// storage/schema.sql.
#pragma once

#include <boost/json.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "base/command_line.h"
#include "protocol/client.h"

namespace gnomon::cli {

struct ServerOptions {
  ClientOptions access{.url = "http://127.0.0.1:7717"};
  std::string run;
  bool json = false;
};

// --url (or the environment's GNOMON_URL), and the options of protocol/client_arguments.h.
void add_url_option(Command& command, ServerOptions& options);

// The same beside `file`, of which one alone is given. What the environment says is no more than
// what a command does without either: see url_or_environment().
void add_url_option_beside(CommandOption& file, Command& command, ClientOptions& access,
                           const std::string& what);
// `url`, else the environment's GNOMON_URL, else `fallback`.
std::string url_or_environment(const std::string& url, const std::string& fallback);

// The body of an answer to GET `target`, an object with `member`, or the problem document of a
// refusal. Throws Error when nothing but a gnomond that speaks TLS, or no gnomond, answers so.
boost::json::object answer_of_gnomond(const std::string& url, const std::string& target,
                                      const HttpResponse& answer, const char* member);

// A client with these options; what they leave open is the environment's. Throws ConfigError that
// names the command line's option.
HttpClient connect(const ClientOptions& access);

class Server {
 public:
  // Throws as connect() does.
  explicit Server(const ClientOptions& access);

  // GET; throws ApiError, ConnectionError, or Error when the answer is no JSON. Before the first
  // request of all /version is asked for: Error when what answers is no gnomond.
  boost::json::value get(const std::string& target);
  // POST of a JSON body; the answer's body. Throws as get() does. `longest`: for what may take its
  // time.
  std::string post(const std::string& target, const std::string& body,
                   std::chrono::milliseconds longest = std::chrono::seconds(10));
  // GET of a text.
  std::string text(const std::string& target);
  // PUT of a JSON body.
  void put(const std::string& target, const std::string& body);
  // DELETE; throws as get() does.
  void erase(const std::string& target, std::chrono::milliseconds longest);
  // GET of a list, all its pages: [] when the answer is no array.
  boost::json::array get_list(const std::string& target);
  // A run's id as in URLs, from "run-1", "name" (its newest job) or "name/job". Throws ConfigError
  // naming the newest runs.
  std::string resolve_run(const std::string& name);

 private:
  void meet();
  // As get(); `next` becomes where the list goes on, or empty.
  boost::json::value get_page(const std::string& target, std::string& next);

  std::string url_;
  HttpClient client_;
  bool met_ = false;  // it is a gnomond
};

// Members of a row; absent and null members read as empty text or NaN.
std::string text_of(const boost::json::object& row, const char* key);
double number_of(const boost::json::object& row, const char* key);
int64_t integer_of(const boost::json::object& row, const char* key);
// "run-1", whether the row says 1 or "run-1".
std::string run_id_of(const boost::json::object& row);

}  // namespace gnomon::cli
