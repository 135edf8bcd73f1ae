// Package policy describes the API as data: its operations, their callers, costs and cache rules, and the causes that
// make stored responses stale. Comments cite the two parts of the specification as Documents A and B, which
// docs/internals/README.md#documents-a-and-b describes. The data are embedded files, and the Go code loads, checks and
// matches the data:
//   - operations/ has the operations of the documents, with one file per section.
//   - github/operations.tsv is the generated table of the whole API, which only the github dialect uses.
//     github/decisions.yaml and github/content.tsv add what the published descriptions do not say.
//     github/collections.yaml lists which responses a write or an event makes stale.
//   - parameters.yaml, aliases.yaml, resources.yaml and dialects.yaml apply to all operations.
//   - fields.yaml lists the request fields that are not forwarded, or do not belong to the cache key.
//   - public.yaml lists the operations whose responses about public resources are the same for everyone.
//   - limitanswers.yaml lists the responses by which the upstream reports a limit.
//   - graphql.yaml lists the fields of the GraphQL API that stay inside one repository. graphqlcache.yaml has data
//     for stored responses.
//
// Invariants:
//   - A loaded [Catalogue] is immutable and safe for concurrent use.
//   - Path and query of a [Match] are canonical: the matched target is the cache key and the forwarded target.
//   - Every request matches an operation. A route outside the catalogue gets careful defaults ([Catalogue.Classify]).
//   - The package uses no clock, no network, no goroutine and no other package of the module.
//
// Entry points: [CatalogueOf] and [Catalogue.Classify]; [ParseGraphQL] for the body of a GraphQL call; [RecognizeLimit] for a response.
// Read operation.go first, then match.go, github.go and collection.go.
package policy
