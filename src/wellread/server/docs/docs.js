// Shows openapi.json of this server with Swagger UI. `validatorUrl` would send the address to another server.
"use strict";

window.ui = SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  onComplete: () => { document.documentElement.dataset.ready = "yes"; },
});
