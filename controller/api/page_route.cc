#include <array>
#include <filesystem>
#include <string_view>

#include "base/files.h"
#include "controller/api/encoding.h"
#include "controller/api/services.h"

namespace gnomon {
namespace {

constexpr std::string_view kBuiltInPage = R"page(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>gnomond</title>
<style>body{font:16px/1.5 system-ui,sans-serif;margin:3em auto;max-width:50em;padding:0 1em}
td,th{padding:.2em 1em .2em 0;text-align:left}</style></head><body>
<h1>gnomond</h1><p>This daemon was started without <code>--web-root</code>, so this is its plain page.</p>
<table id="runs"><tr><th>run</th><th>name</th><th>state</th><th>phase</th><th>step</th><th>loss</th></tr></table>
<p><a href="/v1/runs">/v1/runs</a> · <a href="/metrics">/metrics</a> · <a href="/readyz">/readyz</a> ·
<a href="/version">/version</a> · <a href="/openapi.json">/openapi.json</a></p>
<p id="problem"></p>
<script src="page.js"></script></body></html>
)page";

constexpr std::string_view kBuiltInScript = R"page('use strict';
fetch('v1/runs').then(answer => {
  if (!answer.ok) throw new Error(answer.status === 401 ? 'This daemon answers to tokens; its own page (web_root) asks for one.'
    : `v1/runs: ${answer.status}`);
  return answer.json();
}).then(runs => {
  for (const run of runs) {
    const row = document.getElementById('runs').insertRow();
    for (const key of ['run', 'name', 'state', 'phase', 'step', 'loss']) row.insertCell().textContent = run[key];
  }
}).catch(error => { document.getElementById('problem').textContent = error.message; });
)page";

// No script but the daemon's own files, no frame around the page; charts set styles of their own.
constexpr const char* kContentSecurityPolicy =
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

constexpr std::array<std::pair<std::string_view, const char*>, 8> kContentTypes = {{
    {".html", "text/html; charset=utf-8"},
    {".css", "text/css; charset=utf-8"},
    {".js", "text/javascript; charset=utf-8"},
    {".mjs", "text/javascript; charset=utf-8"},
    {".json", "application/json"},
    {".svg", "image/svg+xml"},
    {".png", "image/png"},
    {".ico", "image/x-icon"},
}};

const char* content_type_of(const std::filesystem::path& file) {
  for (const auto& [extension, type] : kContentTypes) {
    if (file.extension() == extension) {
      return type;
    }
  }
  return "application/octet-stream";
}

// The file inside `root` that `path` names; empty when there is none, or when it would lie outside.
std::filesystem::path file_for(const std::string& root, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path base = fs::canonical(root, error);
  if (error) {
    return {};
  }
  fs::path file = fs::canonical(base / fs::path(path).relative_path(), error);
  if (error) {
    return {};
  }
  if (fs::is_directory(file, error)) {
    file /= "index.html";
  }
  return lies_below(file, {base}) && fs::is_regular_file(file, error) ? file : fs::path();
}

}  // namespace

// Serves what a daemon without a folder of files has.
static Response built_in(const std::string& path) {
  if (path == "/") return {200, "text/html; charset=utf-8", std::string(kBuiltInPage), {}, false};
  if (path == "/page.js") {
    return {200, "text/javascript; charset=utf-8", std::string(kBuiltInScript), {}, false};
  }
  return {404, "", "", {}, false};
}

// Files are read by the ledger's readers: no I/O thread waits for a disk.
static Response from_folder(Exchange& exchange, const std::string& root, const std::string& path) {
  Response response{404, "", "", {}, false};
  exchange.read([&](Connection&) {
    if (std::filesystem::path file = file_for(root, path); !file.empty()) {
      response = {200, content_type_of(file), read_file(file), {}, false};
    }
  });
  return response;
}

Route page_route(Services& services) {
  Route route = {"GET", "/", {}, [&services](Exchange& exchange, const Request& request) {
                   Response response = services.web_root.empty()
                                           ? built_in(request.path)
                                           : from_folder(exchange, services.web_root, request.path);
                   if (response.status != 200) {
                     throw HttpError(404, "Unknown path", "there is nothing at " + request.path,
                                     "a path of /openapi.json, for example /v1/runs");
                   }
                   response.headers = {{"Cache-Control", "no-cache"},
                                       {"ETag", entity_tag(response.body)},
                                       {"Content-Security-Policy", kContentSecurityPolicy},
                                       {"X-Content-Type-Options", "nosniff"},
                                       {"Referrer-Policy", "no-referrer"}};
                   return response;
                 }};
  route.access = Access::kOpen;
  return route;
}

}  // namespace gnomon
