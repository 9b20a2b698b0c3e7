import { defineConfig } from 'vite'

// Addresses are relative, because the controller serves the page below a path.
export default defineConfig({
  base: './',
  build: {
    outDir: 'dist',
    emptyOutDir: true,
    target: 'es2022',
    // Only files, no data: URLs, so that the page's security policy stays short.
    assetsInlineLimit: 0,
    // The licences of the libraries, which must go with them.
    license: { fileName: 'licenses.txt' },
    chunkSizeWarningLimit: 1500,
    modulePreload: { polyfill: false },
    // One file of code, whatever a library would load later.
    rolldownOptions: { output: { codeSplitting: false } },
  },
  // While developing, 'outrigger dashboard --port 8766' serves the data.
  server: { proxy: { '/api': 'http://127.0.0.1:8766' } },
})
