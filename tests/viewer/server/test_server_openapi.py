"""The description lists the routes there are, and answers are as it says."""

import re

from serving import running, scene, small
from starlette.routing import Route


def test_it_lists_exactly_the_routes():
    with running([small()]) as here:
        found = here.client.get("/openapi.json").json()
        app = here.server.config.app
        routes = {
            (route.path, method.lower())
            for route in app.routes
            if isinstance(route, Route)
            for method in route.methods - {"HEAD"}
        }
        said = {(path, method) for path, methods in found["paths"].items() for method in methods}
        assert said == routes
        assert len(app.routes) == len(routes)


def test_parameters_in_a_path_are_described():
    with running([small()]) as here:
        for path, methods in here.client.get("/openapi.json").json()["paths"].items():
            for operation in methods.values():
                given = {
                    one["name"] for one in operation.get("parameters", []) if one["in"] == "path"
                }
                assert given == set(re.findall(r"\{(\w+)\}", path))
                assert operation["summary"] and "default" in operation["responses"]


def test_references_lead_somewhere_and_answers_have_the_fields():
    with running([small()], [scene(4)]) as here:
        found = here.client.get("/openapi.json").json()
        schemas = found["components"]["schemas"]
        assert set(re.findall(r"#/components/schemas/(\w+)", str(found))) <= set(schemas)
        answers = {
            "Models": here.client.get("/api/models").json(),
            "Traces": here.client.get("/api/traces").json(),
            "Scene": here.look().json(),
            "Error": here.look("nobody").json(),
        }
        for name, answer in answers.items():
            assert set(schemas[name]["required"]) <= set(answer), name
        models = schemas["Models"]["properties"]["models"]["items"]["properties"]
        assert set(models) == set(answers["Models"]["models"][0])
        traces = schemas["Traces"]["properties"]["traces"]["items"]["properties"]
        assert set(traces) == set(answers["Traces"]["traces"][0])
