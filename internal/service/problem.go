package service

import "net/http"

// problemBody is the body of an error response. It has the members of the gateway's errors, in the same order.
type problemBody struct {
	Message       string         `json:"message"`
	Errors        []problemField `json:"errors,omitempty"`
	Documentation string         `json:"documentation_url"`
}

type problemField struct {
	Resource string `json:"resource"`
	Field    string `json:"field"`
	Code     string `json:"code"`
}

const notFoundText = "Not Found"

func notFound() response { return fail(http.StatusNotFound, notFoundText) }

// invalid returns a 422 for an invalid field.
func invalid(resource, field string) response {
	return fail(http.StatusUnprocessableEntity, "Validation Failed", problemField{resource, field, "invalid"})
}

// missing returns a 422 for a missing field.
func missing(resource, field string) response {
	return fail(http.StatusUnprocessableEntity, "Validation Failed", problemField{resource, field, "missing_field"})
}

// fail returns an error response.
func fail(status int, message string, fields ...problemField) response {
	return response{status: status, body: problemBody{Message: message, Errors: fields}}
}

// limitProblem returns the API's error response for a reason of refusal.
func (s *Service) limitProblem(req *request, why refusalReason) response {
	body := problemBody{
		Message:       "API rate limit exceeded for " + req.caller.account + ".",
		Documentation: s.config.Dialect.Documentation + "/rate-limits",
	}
	if why == primary && req.graphQL != nil {
		return graphQLProblem([]object{{{"type", "RATE_LIMITED"}, {"message", body.Message}}})
	}
	switch why {
	case banned:
		body.Message = "Your integration has been banned: it went on sending requests while it was limited."
	case secondary:
		body.Message = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
		body.Documentation = s.config.Dialect.Documentation + "/secondary-rate-limits"
	}
	return response{status: http.StatusForbidden, body: body}
}
