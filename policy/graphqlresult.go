package policy

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// HasGraphQLData reports whether the body of a GraphQL response has data and no errors. Other responses are not stored.
func HasGraphQLData(body []byte) bool {
	var answer struct{ Data, Errors json.RawMessage }
	return json.Unmarshal(body, &answer) == nil && answer.Data != nil && string(answer.Data) != "null" && answer.Errors == nil
}

// validationErrors are the codes of errors that the upstream finds in a query without executing it.
var validationErrors = map[string]bool{
	"argumentLiteralsIncompatible": true, "argumentNotAccepted": true, "argumentNotUnique": true, "cannotSpreadFragment": true,
	"defaultValueInvalidType": true, "directiveCannotBeApplied": true, "fieldConflict": true, "fragmentNotUnique": true,
	"infiniteLoop": true, "missingRequiredArguments": true, "missingRequiredInputObjectAttribute": true,
	"selectionMismatch": true, "typeMismatch": true, "undefinedDirective": true, "undefinedField": true,
	"undefinedFragment": true, "undefinedType": true, "useAndDefineFragment": true, "variableMismatch": true,
	"variableNotDefined": true, "variableNotUsed": true, "variableRequiresValidType": true,
}

// HasFinalGraphQLErrors reports whether a GraphQL response has only errors that all identical queries of a security class get at
// the same time: a missing object, or an invalid query. The followers of the call get such a response.
func HasFinalGraphQLErrors(body []byte) bool {
	var answer struct {
		Errors []struct {
			Type       string
			Extensions struct{ Code string }
		}
	}
	if json.Unmarshal(body, &answer) != nil || len(answer.Errors) == 0 {
		return false
	}
	for _, e := range answer.Errors {
		if e.Type != "NOT_FOUND" && (e.Type != "" || !validationErrors[e.Extensions.Code]) {
			return false
		}
	}
	return true
}

// DeniesRepository reports whether the response to a query shows that the repository of the root field "repository" is missing, or
// hidden from the credential.
func DeniesRepository(body []byte) bool {
	var answer struct{ Errors []answeredError }
	return json.Unmarshal(body, &answer) == nil && slices.ContainsFunc(answer.Errors, func(e answeredError) bool {
		return len(e.Path) == 1 && e.Path[0] == "repository" && (e.Type == "NOT_FOUND" || e.Type == "FORBIDDEN")
	})
}

// MutationResult is the result of a GraphQL mutation.
type MutationResult int

// Results of mutations.
const (
	MutationSucceeded MutationResult = iota
	MutationFailed                   // certainly changed nothing
	MutationUncertain
)

// ReadMutationResult returns the result that the body of a response reports. A mutation failed if the response has errors and
// no data. Null in each root field also counts as no data. However, if an error concerns a part of the response below a root
// field, or reports a fault of the upstream, the mutation may have succeeded. Any other data with errors is the result of
// mutations that succeeded.
//
// If the error of a failed mutation concerns its object, status is the status of REST for that error. Otherwise it is 0.
func ReadMutationResult(body []byte) (result MutationResult, status int) {
	var answer struct {
		Data   json.RawMessage
		Errors []answeredError
	}
	if json.Unmarshal(body, &answer) != nil {
		return MutationUncertain, 0
	}
	fields := map[string]json.RawMessage{}
	if answer.Data != nil && json.Unmarshal(answer.Data, &fields) != nil {
		return MutationUncertain, 0
	}
	for _, value := range fields {
		if string(value) != "null" {
			return MutationSucceeded, 0
		}
	}
	below := func(e answeredError) bool { return len(e.Path) > 1 }
	switch {
	case len(answer.Errors) == 0:
		return MutationSucceeded, 0
	case len(fields) > 0 && slices.ContainsFunc(answer.Errors, below), slices.ContainsFunc(answer.Errors, answeredError.isFault):
		return MutationUncertain, 0
	}
	for _, e := range answer.Errors {
		kind, _ := e.Type.(string)
		status = cmp.Or(status, objectErrors[kind])
	}
	return MutationFailed, status
}

// objectErrors are the types of errors which show that an object is not in the state that the client has seen, with the status of
// REST for the same error.
var objectErrors = map[string]int{
	"FORBIDDEN": http.StatusForbidden, "NOT_FOUND": http.StatusNotFound, "STALE_DATA": http.StatusConflict, "UNPROCESSABLE": http.StatusUnprocessableEntity,
}

// answeredError is an error in the response to a GraphQL call.
type answeredError struct {
	Path          []any
	Type, Message any
}

// isFault reports whether the upstream failed or ran out of time, instead of refusing the call.
func (e answeredError) isFault() bool {
	message, _ := e.Message.(string)
	return strings.HasPrefix(message, "Something went wrong while executing your query") || e.Type == "INTERNAL" || e.Type == "SERVICE_UNAVAILABLE"
}

// ReadGraphQLCost returns the cost that a response to a GraphQL call has at data.rateLimit.cost, or zero. executed is false if the
// response has only errors, so the cost may be lower than the cost of the query. The body may be truncated: the cost is then
// zero, and executed is true, because errors are short. outside reports whether the cost is outside its range, and ignored.
func ReadGraphQLCost(body []byte) (cost int, executed, outside bool) {
	// Maps, because the names of members of a struct ignore case, and a client chooses aliases.
	var parsed, data, rate map[string]json.RawMessage
	if json.Unmarshal(body, &parsed) != nil {
		return 0, true, false
	}
	if json.Unmarshal(parsed["data"], &data) != nil || data == nil {
		return 0, false, false
	}
	if json.Unmarshal(data["rateLimit"], &rate) != nil || rate["cost"] == nil {
		return 0, true, false
	}
	value, v := GraphQLCost.Parse(string(rate["cost"]))
	return int(value), true, v == Ignored
}
